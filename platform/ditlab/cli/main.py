"""The command `ditlab`. Commands are imported when they are called; `--help` imports nothing heavy."""

import atexit
import errno
import importlib
import json
import logging
import os
import re
import sys
import traceback
import warnings
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from ditlab.cli.terminal import escape_for_terminal
from ditlab.errors import RunFailed, UserError, first_line, nearest
from ditlab.home import Home
from ditlab.runs.signals import command_signals, ignore_signals, is_interrupted
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
    "ask": ("ask", "Ask a run in training for samples, an evaluation, a checkpoint, its end."),
    "compare": ("analysis", "Compare runs: parameters, curves, speed, samples."),
    "report": ("pages", "Write one page for a run: curves, samples, speed, failures, spec."),
    "watch": ("pages", "Show a run's page live in a browser, while it trains."),
    "params": ("specs", "Count a model's parameters by component."),
    "plan": ("plan", "Tell memory, time and cost of a run before a GPU is taken."),
    "profile": ("specs", "Show where the time of a training step goes."),
    "figures": ("analysis", "Draw the figures of a run's family, or those that need no run."),
    "new": ("specs", "Write a commented spec to begin with."),
    "validate": ("specs", "Check specs without running them."),
    "show": ("specs", "Print a spec with its parents, overrides and defaults resolved."),
    "schema": ("specs", "Print the JSON schema of experiments, or of a command's result."),
    "data": ("data", "Import data into Arrow stores; inspect, encode and upload them."),
    "export": ("analysis", "Write a run's weights as safetensors with the spec that rebuilds the network."),
    "weights": ("weights", "Tell format and spec of published weights, to train from them."),
    "runs": ("runs", "List, query, rename and delete runs; send MLflow what it missed."),
    "ui": ("pages", "Open the MLflow UI on the runs in DITLAB_HOME."),
    "doctor": ("machine", "Check this machine, or a cluster."),
    "completion": ("machine", "Print a script that completes commands and runs in a shell."),
}


# Examples at the end of each `--help`: a command's own are those that name it. A test takes each apart as the command
# would, and loads the specs in it.
EXAMPLES = """
ditlab train experiments/digits/dit.yaml --local
ditlab train experiments/digits/dit.yaml --set training.steps=2500
ditlab train experiments/digits/dit.yaml --resume auto
ditlab train experiments/digits/dit.yaml --dry-run
ditlab train - --local < experiments/digits/dit.yaml
ditlab tune experiments/digits/sweep_schedule.yaml --dry-run
ditlab tune experiments/digits/sweep_schedule.yaml --set trials=4
ditlab tune --resume 1a2b3c4d
ditlab submit experiments/digits/dit.yaml --resume auto
ditlab submit experiments/digits/sweep_schedule.yaml --no-wait
ditlab sample digits-dit --num 16
ditlab sample 1a2b3c4d --solver heun --steps 25 --seed 3 --out samples
ditlab sample mnist-class --label 7 --guidance 2
ditlab sample captions --prompt "a red circle" --size 32x48
ditlab evaluate digits-dit
ditlab evaluate 1a2b3c4d --quality 2000
ditlab evaluate 1a2b3c4d --quality 500 --set sampling.steps=10
ditlab evaluate 1a2b3c4d --ema 0.05,0.1,0.15,0.2,0.25
ditlab prove experiments/digits/dit.yaml
ditlab prove experiments/digits/dit.yaml --set engine.zero.stage=2
ditlab prove experiments/pixelhdm/base.yaml --json
ditlab replay digits-dit --step 400
ditlab replay 1a2b3c4d --step 1 --to 50 --check
ditlab replay 1a2b3c4d --worst 5 --out spikes
ditlab replay 1a2b3c4d --step 400 --set training.clip.max_norm=0.5
ditlab verify digits-dit
ditlab verify 1a2b3c4d --steps 10 --time 600 --seed 7
ditlab verify 1a2b3c4d --steps 0 --json
ditlab ask digits-dit sample
ditlab ask 1a2b3c4d evaluate --wait 60 --json
ditlab ask 1a2b3c4d stop-after-evaluation --no-wait
ditlab ask 1a2b3c4d checkpoint --address 10.0.0.5:6379
ditlab compare digits-dit digits-unet
ditlab compare 1a2b3c4d 5e6f7a8b --samples 0 --out comparison
ditlab report digits-dit
ditlab report 1a2b3c4d --out digits.html --log
ditlab watch digits-dit
ditlab watch 1a2b3c4d --port 0 --no-open
ditlab params experiments/digits/dit.yaml --shapes
ditlab params experiments/digits/dit.yaml --set model.depth=9
ditlab plan experiments/digits/dit.yaml --measure
ditlab plan experiments/pixelhdm/base.yaml --gpu H100 --gpus 8 --price 2.50
ditlab plan experiments/region/get.yaml --gpu L4 --apply smaller.yaml
ditlab profile experiments/digits/dit.yaml
ditlab profile experiments/digits/unet.yaml --steps 5 --out profile
ditlab figures --list
ditlab figures digits-dit --kind loss --out figures
ditlab new
ditlab new mine --like digits/dit
ditlab new rates --like digits/sweep_schedule
ditlab validate experiments/digits/dit.yaml
ditlab validate experiments/digits/*.yaml
ditlab show experiments/digits/dit.yaml --set model.depth=9
ditlab show experiments/digits/sweep_schedule.yaml > resolved.yaml
ditlab schema --out experiment.schema.json
ditlab schema --sweep
ditlab schema --result "runs show"
ditlab data import mnist
ditlab data inspect mnist-train
ditlab data upload mnist-train s3://BUCKET/stores/mnist-train
ditlab data import text --source book.txt
ditlab data import digits
ditlab data import mnist --source idx --no-checksum
ditlab data import images --source photos
ditlab data import images --source 's3://BUCKET/web/*.tar' --address auto
ditlab data import text --source book.txt --length 256
ditlab data import text --source book.txt --tokenizer bpe --name book
ditlab data import get --source pbmc.zarr --regions 200
ditlab data import get --source s3://BUCKET/pbmc.zarr --cell-type cd4
ditlab data import images --source more --into images-photos-256
ditlab data list
ditlab data rm images-photos-256
ditlab data statistics photos --weights inception.pth --sha256 $SHA256
ditlab data encode images-photos-256 --encode-text Qwen/Qwen3-0.6B
ditlab data inspect mnist-train --num 64
ditlab data inspect s3://BUCKET/stores/mnist-train --json
ditlab export digits-dit --out weights
ditlab export 1a2b3c4d --out weights --raw
ditlab weights inspect weights
ditlab weights inspect hf://OWNER/NAME@REVISION --json
ditlab runs --num 50
ditlab runs show digits-dit
ditlab runs --tracking http://127.0.0.1:5000
ditlab runs log 1a2b3c4d
ditlab runs query "SELECT name, main_value FROM runs"
ditlab runs query --schema
ditlab runs rename 1a2b3c4d wide
ditlab runs rm 1a2b3c4d --dry-run
ditlab runs sync
ditlab runs sync 1a2b3c4d --tracking http://127.0.0.1:5000
ditlab ui
ditlab ui --port 5001 --wait 600
ditlab ui --host 0.0.0.0 --auth --allowed-hosts mlflow.example.org
ditlab doctor
ditlab doctor --cluster --address 10.0.0.5:6379
ditlab doctor --cluster --storage s3://BUCKET/checkpoints
eval "$(ditlab completion bash)"
ditlab completion fish > ~/.config/fish/completions/ditlab.fish
""".strip().split("\n")

# Errors of a disk that cannot be used as it is; any other OSError is a mistake of ours.
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


def examples_of(name: str) -> list[str]:
    """Return the examples of a command, and of those below it."""
    return [line for line in EXAMPLES if re.search(rf"(^|\()ditlab {name}( |\)|$)", line)]


def with_examples(command: click.Command, name: str) -> click.Command:
    """Put the examples of a command, and of the commands below it, at the end of their help; `name` may have words."""
    if lines := examples_of(name):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            with_examples(each, f"{name} {below}")
    return command


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

    Exit codes: 0 done; 1 a run failed, or a check found something off; 2 the input is wrong, or a budget refuses; 130
    interrupted after a final checkpoint.
    """
    with suppress(OSError, UserError):  # the command itself says what is wrong with the home
        home = Home.named_by_environment()
        if any(home.runs.glob("*/notify-lost.json")):
            from ditlab.runs.notifications import send_owed

            send_owed(home, lambda text: click.echo(escape_for_terminal(f"warning: {text}"), err=True))


def main() -> None:
    """Run the command line and exit with its code; errors that a person can correct are printed without a traceback."""
    hide_tracebacks()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`<&-`): the first files that are opened would take its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    atexit.register(ignore_signals)
    warnings.showwarning = _show_warning
    logger = logging.getLogger("ditlab")  # without a handler of the program's, what the package logs goes nowhere
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
        if type(error).__name__ == "NoArgsIsHelpError":  # new in click 8.2: its message is the whole help
            error.show()
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        see = f" (see `{context.command_path} --help`)" if context else ""
        _fail(f"{error.format_message()}{see}", error.exit_code, UserError.kind)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted.", 130, "interrupted")
    except OSError as error:
        if stream := _failed_stream(error):
            if isinstance(error, BrokenPipeError):  # `ditlab show ... | head`
                sys.exit(1)
            _fail(
                f"{stream} cannot be written ({error.strerror}); send it to another file, or make room there.",
                1,
                "storage",
            )
        if error.errno not in REFUSALS:
            raise
        place = error.filename or f"DITLAB_HOME={os.environ.get('DITLAB_HOME', 'runs')}"
        _fail(f"{place} cannot be used ({error.strerror}); make room there, or correct its permissions.", 1, "storage")
    except Exception:
        if is_interrupted():  # pydantic's core, within an import, makes a SchemaError of it
            _fail("interrupted.", 130, "interrupted")
        raise


def _failed_stream(error: OSError) -> str:
    """The standard stream that an error is about, which goes nowhere from now on; empty for an error of another file.

    An unbuffered stream that has failed does not fail at a flush: what wrote last, click or rich, tells its file.
    """
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    file = frame.f_locals.get("file") or getattr(frame.f_locals.get("self"), "file", None)
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        with suppress(OSError, ValueError):  # ValueError: a stream of another program's, without a number
            if error.filename is None and file is not None and file.fileno() == stream.fileno():
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                return name
    return ""


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


def _fail(message: str, code: int, kind: str) -> None:
    message = hide(message)
    with suppress(OSError):  # whoever reads standard error is gone
        click.echo(f"ditlab: {escape_for_terminal(message)}", err=True)
    _print_error(kind, message, code)
    sys.exit(code)


def _print_error(kind: str, message: str, code: int) -> None:
    """Print the object of an error under `--json` (`results.ErrorOutput`)."""
    if "--json" in sys.argv:
        with suppress(OSError):
            click.echo(json.dumps({"status": "error", "kind": kind, "message": message, "exit_code": code}))
