"""Last line of a command for people: the next useful command, ready to be copied."""

import shlex
import shutil
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from ditlab.cli.common import say


def hint(as_json: bool, command: str, *arguments: object) -> None:
    """Print the next useful command of DiTLab on standard error; nothing under `--json`."""
    if not as_json:
        say(f"next: {command_line(command, *arguments)}")


def say_resume(command: str, *arguments: object) -> None:
    """Print the command that an interrupted run goes on with on standard error, also under `--json`: logs keep it."""
    hint(False, command, *arguments)


def hint_text(as_json: bool, text: str) -> None:
    """Print what is useful next where that is no command of DiTLab's."""
    if not as_json:
        say(f"next: {text}")


def command_line(command: str, *arguments: object) -> str:
    """A command of DiTLab as a shell takes it; `command` may have several words (`data inspect`)."""
    return " ".join([program(), command, *(shlex.quote(str(argument)) for argument in arguments)])


def program() -> str:
    """DiTLab's own command as the shell finds it: `ditlab`, its path, or Python with the module."""
    if shutil.which("ditlab"):
        return "ditlab"
    beside = Path(sys.executable).with_name("ditlab")
    return short_path(beside) if beside.is_file() else f"{short_path(Path(sys.executable))} -m ditlab"


def short_path(path: Path) -> str:
    """Path quoted for a shell, relative to the working directory where it lies below it."""
    return shlex.quote(str(relative(path)))


def relative(path: Path) -> Path:
    """Path relative to the working directory where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def repeated_arguments(*without: str) -> list[str]:
    """Arguments of the running command as they were typed, but for the parameters of these names."""
    context = click.get_current_context()
    found: list[str] = []
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        if name in without or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        values = list(value) if isinstance(value, tuple) else [value]
        if not isinstance(parameter, click.Option):
            found += map(str, values)
        elif parameter.is_flag:
            found.append(parameter.opts[0] if value else (parameter.secondary_opts or parameter.opts)[0])
        else:
            found += [part for each in values for part in (parameter.opts[0], str(each))]
    return found
