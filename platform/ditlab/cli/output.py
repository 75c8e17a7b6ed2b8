"""Output of commands: lines, YAML, tables, the JSON object of `--json`, and the hint on the last
line.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ditlab.cli.terminal import echo, escape_for_terminal, is_encodable
from ditlab.home import Home, is_ray_job
from ditlab.parts import absent_part

if TYPE_CHECKING:
    from ditlab.cli.progress import TerminalConsole
    from ditlab.reports.time_summary import TimeSummary
    from ditlab.spec.quick import Quick, SpecT

INDENT = "  "
MOST_COLUMNS = 80
"""Columns of the lines about times."""


def emit(result: Mapping[str, Any], as_json: bool, files: Iterable[Path] = ()) -> None:
    """Print a line for each of a command's files, and the JSON line for `--json`, null for NaN and
    infinity.

    Its keys are those of the command's type in `results.py` of its folder.
    """
    for file in files:
        print_line(file, as_json)
    if as_json:
        echo(json.dumps(finite(result), allow_nan=False))


def finite(value: Any) -> Any:
    """A value, and what it holds, with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def say(message: str) -> None:
    """Print a line for people on standard error, without secrets and control characters."""
    echo(escape_for_terminal(message), err=True)


def print_line(text: object, as_json: bool = False) -> None:
    """Print a line of a command's result as `say` does: on standard output, or on standard error
    for `--json`.
    """
    echo(escape_for_terminal(str(text)), err=as_json)


def print_yaml(mapping: Mapping[str, Any], as_json: bool = False) -> None:
    """Print a mapping as YAML: as it is in a file or pipe, with visible control characters on a
    terminal, and with YAML's own escapes where the stream lacks a character.
    """
    from ditlab.spec.yaml_text import dump_yaml

    text = dump_yaml(mapping)
    out = sys.stderr if as_json else sys.stdout
    if not is_encodable(text, out):
        text = dump_yaml(mapping, ascii_only=True)
    if out.isatty():
        text = escape_for_terminal(text)
    echo(text, nl=False, err=as_json)


def console(as_json: bool) -> TerminalConsole:
    """Console of a command's tables, which reads no markup: standard output, or standard error for
    `--json`.
    """
    from ditlab.cli.progress import TerminalConsole

    return TerminalConsole(stderr=as_json)


def say_changes(short: Quick[SpecT]) -> tuple[SpecT, dict[str, Any]]:
    """Say what `--quick` changes; return the short spec, and the changes for `--json`."""
    for line in short.lines():
        say(line)
    return short.spec, short.to_dict()


def say_delivery(what: str, run_id: str, num_unsent: int) -> None:
    """Say what has become of records that a command added to a run: sent to MLflow, or queued for
    it.
    """
    if not num_unsent:
        say(f"{what} sent to MLflow, run {run_id}")
        return
    plural = "s" if num_unsent > 1 else ""
    say(
        f"{what} queued for MLflow, which does not take them now ({num_unsent:,} record{plural} to "
        f"send); `ditlab runs sync {run_id}` sends them"
    )


def hint(as_json: bool, command: str, *arguments: object) -> None:
    """Print the next useful command of DiTLab on standard error; none under `--json`, and none that
    is not here.
    """
    if not absent_part("command", command):
        hint_text(as_json, command_line(command, *arguments))


def hint_text(as_json: bool, text: str) -> None:
    """Print what is useful next where that is no command of DiTLab's."""
    if not as_json:
        say(f"next: {text}")


def command_line(command: str, *arguments: object) -> str:
    """A command of DiTLab (`data inspect`) as a shell takes it: by `ditlab`, its path, or Python
    with the module.

    In a Ray job it names the job's home: whoever reads it may be in another folder.
    """
    beside = Path(sys.executable).with_name("ditlab")
    if is_ray_job():
        program = f"DITLAB_HOME={shlex.quote(str(Home.named_by_environment().root))} ditlab"
    elif shutil.which("ditlab"):
        program = "ditlab"
    elif beside.is_file():
        program = short_path(beside)
    else:
        program = f"{short_path(Path(sys.executable))} -m ditlab"
    return " ".join([program, command, *(shlex.quote(str(argument)) for argument in arguments)])


def short_path(path: Path) -> str:
    """Path quoted for a shell, as `relative` writes it."""
    return shlex.quote(str(relative(path)))


def relative(path: Path) -> Path:
    """Path relative to the working directory where it lies below it; absolute in a Ray job, whose
    folder is Ray's.
    """
    if is_ray_job():
        return path.absolute()
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd())
    return path


def is_typed(name: str) -> bool:
    """Return True for a parameter of the running command that was given on its command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def repeated_arguments(*without: str) -> list[str]:
    """Arguments of the running command as they were typed, but for the parameters of these
    names.
    """
    context = click.get_current_context()
    found: list[str] = []
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        if name in without or not is_typed(name):
            continue
        value = context.params[name]
        values = list(value) if isinstance(value, tuple) else [value]
        if not isinstance(parameter, click.Option):
            found += map(str, values)
        elif parameter.is_flag:
            off = parameter.secondary_opts or parameter.opts
            found.append(parameter.opts[0] if value else off[0])
        else:
            for each in values:
                found += [parameter.opts[0], str(each)]
    return found


def first_text_lines(texts: Sequence[str], most: int = 8) -> list[str]:
    """Return the first of several texts in at most so many lines of a terminal, below one that says
    what it is.
    """
    if not texts:
        return []
    width = shutil.get_terminal_size().columns - len(INDENT)
    lines: list[str] = []
    for line in texts[0].strip("\n").split("\n"):
        lines += wrap(line, max(20, width)) or [""]
    number = f"text 1 of {len(texts)}" if len(texts) > 1 else "text"
    if not texts[0].strip():
        return [f"{number} is empty"]
    cut = f", its first {most} lines" if len(lines) > most else ""
    return [f"{number}{cut}:", *(f"{INDENT}{line}" for line in lines[:most])]


def time_lines(summary: TimeSummary) -> list[str]:
    """Return the lines of the table: a heading, a line a phase, then utilisation, speed and
    memory.
    """
    width = max(len("phase"), *map(len, summary.seconds))
    lines = [
        summary.heading(),
        f"  {'phase':<{width}}  {'seconds':>10}  {'share':>6}  {'ms a step':>9}",
    ]
    for name, seconds, share, milliseconds in summary.rows():
        lines.append(f"  {name:<{width}}  {seconds:>10,.2f}  {share:>6}  {milliseconds:>9,.2f}")
    for text in summary.sentences():
        lines += wrap(text, MOST_COLUMNS, initial_indent="  ", subsequent_indent="  ")
    return lines
