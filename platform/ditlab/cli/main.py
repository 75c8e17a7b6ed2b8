"""The command `ditlab`. Commands are imported when they are called; `--help` imports nothing heavy."""

import atexit
import errno
import importlib
import json
import logging
import os
import signal
import sys
import warnings
from typing import Any

import click
from click.shell_completion import CompletionItem

from ditlab.cli.examples import with_examples
from ditlab.cli.terminal import escape_for_terminal
from ditlab.errors import RunFailed, UserError, nearest
from ditlab.secrets import hide, hide_tracebacks

# Name -> (module, text in the list of commands).
COMMANDS = {
    "train": ("train", "Train an experiment."),
    "tune": ("sweeps", "Run a sweep: trials, ranking, report."),
    "submit": ("train", "Run an experiment or a sweep as a job of a Ray cluster."),
    "sample": ("analysis", "Draw samples from a run's weights."),
    "evaluate": ("analysis", "Measure a run on held-out data, and add the metrics to it."),
    "prove": ("checks", "Compare a spec's engine with a reference, step by step."),
    "replay": ("checks", "Do a step of a run again: samples, losses, gradients."),
    "verify": ("checks", "Check a run's receipts, files and data; do some steps again."),
    "compare": ("analysis", "Compare runs: parameters, curves, speed, samples."),
    "report": ("pages", "Write one page for a run: curves, samples, speed, failures, spec."),
    "watch": ("pages", "Show a run's page live in a browser, while it trains."),
    "params": ("specs", "Count a model's parameters by component."),
    "plan": ("plan", "Tell memory, time and cost of a run before a GPU is taken."),
    "profile": ("specs", "Show where the time of a training step goes."),
    "figures": ("analysis", "Draw the figures of a run's family, or those that need no run."),
    "validate": ("specs", "Check specs without running them."),
    "show": ("specs", "Print a spec with its parents, overrides and defaults resolved."),
    "schema": ("specs", "Print the JSON schema of experiments, for editors."),
    "data": ("data", "Import data into Arrow stores, inspect and upload them."),
    "export": ("analysis", "Write a run's weights as safetensors with the spec that rebuilds the network."),
    "runs": ("runs", "List, show and delete runs; send MLflow what it missed."),
    "ui": ("pages", "Open the MLflow UI on the runs in DITLAB_HOME."),
    "doctor": ("machine", "Check this machine, or a cluster."),
    "completion": ("machine", "Print a script that completes commands and runs in a shell."),
}


# Errors of a disk that cannot be used as it is; any other OSError is a mistake of ours.
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class LazyGroup(click.Group):
    """A group whose commands are imported on demand from `ditlab.cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises UsageError, with the nearest name, for an unknown one."""
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"no command {cmd_name!r}; {nearest(cmd_name, list(COMMANDS))}", ctx)
        module = importlib.import_module(f"ditlab.cli.{COMMANDS[cmd_name][0]}")
        return with_examples(getattr(module, cmd_name), cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands' names from `COMMANDS` alone, and options."""
        commands = [
            CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of `--help` from `COMMANDS` alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ditlab", prog_name="ditlab")
def cli() -> None:
    """A laboratory for diffusion models: one typed experiment spec, from a laptop to a GPU cluster.

    Exit codes: 0 done, 1 a run failed, 2 the input is wrong, 130 interrupted after a final checkpoint.
    """


def main() -> None:
    """Run the command line and exit with its code; errors that a person can correct are printed without a traceback."""
    hide_tracebacks()
    # At its end Python gives the signal back to the system: one Ctrl-C more, while Ray and torch are being unloaded,
    # would end the process by the signal, without its exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    warnings.showwarning = _show_warning
    logger = logging.getLogger("ditlab")  # without a handler of the program's, what the package logs goes nowhere
    logger.addHandler(handler := _Sentences(logging.WARNING))
    try:
        code = cli.main(prog_name="ditlab", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (UserError, RunFailed) as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # new in click 8.2: its message is the whole help
            error.show()
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        see = f" (see `{context.command_path} --help`)" if context else ""
        _fail(f"{error.format_message()}{see}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted.", 130)
    except BrokenPipeError:  # `ditlab show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        place = error.filename or f"DITLAB_HOME={os.environ.get('DITLAB_HOME', 'runs')}"
        _fail(f"{place} cannot be used ({error.strerror}); make room there, or correct its permissions.", 1)
    finally:
        logger.removeHandler(handler)


class _Sentences(logging.Handler):
    """Handler that prints the package's warnings for people, as sentences on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning without secrets and control characters."""
        click.echo(escape_for_terminal(f"warning: {hide(record.getMessage()).rstrip('.')}."), err=True)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning: one on a part of another package as a sentence, any other as Python does."""
    is_plugin = category.__name__ == "PluginWarning"  # not imported: `--help` needs none of it
    text = f"warning: {message}\n" if is_plugin else warnings.formatwarning(message, category, filename, lineno, line)
    click.echo(escape_for_terminal(text), file=file, nl=False, err=True)


def _fail(message: str, code: int) -> None:
    message = hide(message)
    click.echo(f"ditlab: {escape_for_terminal(message)}", err=True)
    if "--json" in sys.argv:
        click.echo(json.dumps({"status": "error", "message": message, "exit_code": code}))
    sys.exit(code)
