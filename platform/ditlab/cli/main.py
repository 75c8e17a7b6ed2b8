"""The command `ditlab`. Commands are imported when they are called; `--help` imports nothing
heavy.
"""

import atexit
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from ditlab.cli.terminal import (
    echo,
    escape_for_terminal,
    escape_unencodable,
    open_closed_streams,
)
from ditlab.errors import (
    DISK_REMEDIES,
    RunFailed,
    UserError,
    disk_remedy,
    first_line,
    nearest,
)
from ditlab.parts import absent_part, commands, find_command, load_part, named
from ditlab.runs.signals import command_signals, ignore_signals, is_interrupted
from ditlab.secrets import hide, hide_tracebacks


def examples_of(words: str) -> list[str]:
    """Return the examples of a command by its words (`runs show`), and of the commands below it."""
    command = find_command(words.partition(" ")[0])
    if command is None:
        return []
    named = re.compile(rf"(^|\()ditlab {words}( |\)|$)")
    return [line for line in command.examples if named.search(line)]


def with_examples(command: click.Command, words: str) -> click.Command:
    """Put the examples of a command, and of the commands below it, at the end of their help."""
    lines = examples_of(words)
    if lines:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            with_examples(each, f"{words} {below}")
    return command


class LazyGroup(click.Group):
    """A group whose commands are described by `ditlab.parts` and imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names."""
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises UsageError, with the nearest name, for an unknown one."""
        found = find_command(cmd_name)
        if found is None:
            reason = absent_part("command", cmd_name)
            raise click.UsageError(
                reason or f"no command {cmd_name!r}; {nearest(cmd_name, list(commands()))}", ctx
            )
        return with_examples(load_part("command", cmd_name, found.target), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of `--help` without the commands' code."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in commands().items()])


class OpenGroup(click.Group):
    """A command with commands of its own below it, and those that other parts bring
    (`Parts.subcommands`).
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names."""
        words = f"{self.name} "
        brought = [
            name.removeprefix(words) for name in named("subcommands") if name.startswith(words)
        ]
        return sorted({*self.commands, *brought})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported where another part brings it. Raises UsageError for one of an
        absent add-on.
        """
        words = f"{self.name} {cmd_name}"
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        target = named("subcommands").get(words)
        if target:
            return with_examples(load_part("command", words, target), words)
        reason = absent_part("command", words)
        if reason:
            raise click.UsageError(reason, ctx)
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command of a line. Those that other parts bring are among those that a misspelt
        name may mean.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if type(error).__name__ != "NoSuchCommand":  # new in click 8.4
                raise
            unknown: Any = type(error)
            raise unknown(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ditlab", prog_name="ditlab")
def cli() -> None:
    """A laboratory for diffusion models: one typed experiment spec, from a laptop to a GPU cluster.

    Exit codes: 0 done; 1 a run failed, or a check found something off; 2 the input is wrong, or a
    budget refuses; 130 interrupted after a final checkpoint.
    """


def missing_texts(arguments: Sequence[str], optimize: int) -> str:
    """Sentence on texts that a command line asks for and Python has dropped; empty where none
    is. `optimize` is Python's own level.
    """
    asks = not arguments or {"-h", "--help", "schema"} & set(arguments)
    if optimize < 2 or not asks:
        return ""
    return (
        "warning: Python runs without docstrings (PYTHONOPTIMIZE=2 or -OO), so help and schemas "
        "lack most descriptions; unset it to read them."
    )


def main() -> None:
    """Run the command line and exit with its code; errors that a person can correct are printed
    without a traceback.
    """
    hide_tracebacks()
    open_closed_streams()
    escape_unencodable()
    note = missing_texts(sys.argv[1:], sys.flags.optimize)
    if note:
        echo(note, err=True)
    atexit.register(ignore_signals)
    warnings.showwarning = _show_warning
    # without a handler of the program's, what the package logs goes nowhere
    logger = logging.getLogger("ditlab")
    logger.addHandler(handler := _Sentences(logging.WARNING))
    with command_signals():
        try:
            _run()
        except Exception as error:  # a fault of ours, whose traceback is on standard error
            _print_error("crash", f"{type(error).__name__}: {first_line(error)}", 1)
            raise
        finally:
            logger.removeHandler(handler)


def _run() -> None:
    try:
        if "DITLAB_SUBMITTER" in os.environ:
            from ditlab.cluster.jobs import take_submitters_home

            take_submitters_home()
        code = cli.main(prog_name="ditlab", standalone_mode=False)
        click.echo(nl=False)  # flushes what others have printed
        sys.exit(code if isinstance(code, int) else 0)
    except (UserError, RunFailed) as error:
        _fail(str(error), error.exit_code, error.kind)
    except click.ClickException as error:
        _fail_of_usage(error)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted.", 130, "interrupted")
    except OSError as error:
        stream = _failed_stream(error)
        if isinstance(error, BrokenPipeError):  # `ditlab show ... | head`
            sys.exit(1)
        if error.errno not in DISK_REMEDIES:
            raise
        place = error.filename or stream or f"DITLAB_HOME={os.environ.get('DITLAB_HOME', 'runs')}"
        _fail(
            f"{place} cannot be used ({error.strerror}); {disk_remedy(error)}.",
            1,
            "storage",
        )
    except Exception:
        if is_interrupted():  # pydantic's core, within an import, makes a SchemaError of it
            _fail("interrupted.", 130, "interrupted")
        raise


def _fail_of_usage(error: click.ClickException) -> None:
    """Exit for a command line that click refuses: with the sentence of an add-on that is not here
    where its option is given, else with click's own, and the help that it may be read in.
    """
    # new in click 8.2: its message is the whole help
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    message = ""
    if isinstance(error, click.NoSuchOption):
        message = absent_part("option", error.option_name)
    if not message:
        message = error.format_message()
        context = getattr(error, "ctx", None)
        if context:
            message += f" (see `{context.command_path} --help`)"
    _fail(message, error.exit_code, UserError.kind)


def _failed_stream(error: OSError) -> str:
    """The standard stream that an error is about, which goes nowhere from now on; empty for an
    error of another file.

    An unbuffered stream that has failed does not fail at a flush: what wrote last, click or rich,
    tells its file.
    """
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    file = frame.f_locals.get("file") or getattr(frame.f_locals.get("self"), "file", None)
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        # ValueError: a stream of another program's, without a number
        with suppress(OSError, ValueError):
            if error.filename is None and file is not None and file.fileno() == stream.fileno():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                return name
    return ""


class _Sentences(logging.Handler):
    """Handler that prints the package's warnings for people, as sentences on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning without secrets and control characters."""
        message = hide(record.getMessage()).rstrip(".")
        echo(escape_for_terminal(f"warning: {message}."), err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: Any = None,
) -> None:
    """Print a warning: one on a part of another package as a sentence, any other as Python does."""
    is_plugin = category.__name__ == "PluginWarning"  # not imported: `--help` needs none of it
    if is_plugin:
        text = f"warning: {message}\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
    echo(escape_for_terminal(text), nl=False, err=True)


def _fail(message: str, code: int, kind: str) -> None:
    message = hide(message)
    with suppress(OSError):  # whoever reads standard error is gone
        echo(f"ditlab: {escape_for_terminal(message)}", err=True)
    _print_error(kind, message, code)
    sys.exit(code)


def _print_error(kind: str, message: str, code: int) -> None:
    """Print the object of an error under `--json` (`output_types.ErrorOutput`)."""
    if "--json" in sys.argv:
        result = {"status": "error", "kind": kind, "message": message, "exit_code": code}
        with suppress(OSError):
            echo(json.dumps(result))
