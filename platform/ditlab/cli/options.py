"""Options that several commands share, the output of commands, and the hint on its last line.

Runs' ids and names are completed in a shell from the folders of DITLAB_HOME: in a fraction of a second, without torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ditlab.cli.terminal import escape_for_terminal
from ditlab.home import Home
from ditlab.storage.plain_files import read_json

if TYPE_CHECKING:
    from ditlab.api.run import Run
    from ditlab.cli.progress import ProgressBars, TerminalConsole
    from ditlab.reports.time_summary import TimeSummary
    from ditlab.tracking.records import FoundRun


MOST_RUNS = 500
"""Newest runs that are offered."""
MOST_COLUMNS = 80
"""Columns of the lines about times."""
_PLAIN = re.compile(r"[\w.-]+")  # any other name would have to be quoted, or could be a command of the terminal's
_MOST_BYTES = 1 << 16  # of a run.json
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest runs that begin with `incomplete`, described by name and status; names after the ids."""
    ids: list[CompletionItem] = []
    names: dict[str, CompletionItem] = {}
    for folder in _newest(Home.named_by_environment().runs):
        found = _record(folder)
        name, status = (str(found.get(key, "")) for key in ("name", "status"))
        described = ", ".join(text for text in (name, status) if _PLAIN.fullmatch(text))
        if folder.name.startswith(incomplete) and _PLAIN.fullmatch(folder.name):
            ids.append(CompletionItem(folder.name, help=described))
        if incomplete and name.startswith(incomplete) and _PLAIN.fullmatch(name):
            names.setdefault(name, CompletionItem(name, help=f"newest: {folder.name}"))
    return [*ids, *names.values()]


def complete_resume(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs as `complete_run` offers them, after the word `auto`."""
    auto = [CompletionItem("auto", help="newest unfinished run of this spec")] if "auto".startswith(incomplete) else []
    return [*auto, *complete_run(context, parameter, incomplete)]


def _newest(runs: Path) -> list[Path]:
    """Run folders, the newest first."""
    with suppress(OSError), os.scandir(runs) as entries:
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        folders.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, reverse=True)
        return [Path(entry.path) for entry in folders[:MOST_RUNS]]
    return []


def _record(folder: Path) -> dict[str, Any]:
    """A run's record as it is in the file; empty where it cannot be read."""
    with suppress(OSError, ValueError):
        found = read_json(folder / "run.json", _MOST_BYTES)
        return found if isinstance(found, dict) else {}
    return {}


json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object as the last line of standard output."
)
set_option: Decorator = click.option(
    "--set", "overrides", multiple=True, metavar="P=V", help="Override a field by its dotted path: optimizer.lr=1e-4."
)
quick_option: Decorator = click.option(
    "--quick",
    is_flag=True,
    help="Shorten it to about a minute: few steps, small batches, few evaluated samples. Prints what it changes; "
    "fields of --set stay.",
)
spec_argument: Decorator = click.argument("spec", type=click.Path(path_type=Path))
run_argument: Decorator = click.argument("run", shell_complete=complete_run)
start_option: Decorator = click.option(
    "--from",
    "start_from",
    metavar="RUN[@STEP]",
    shell_complete=complete_run,
    help="Go on from another run's checkpoint, with its optimiser and step: a fork. Without STEP, its newest one.",
)
weights_only_option: Decorator = click.option(
    "--weights-only",
    is_flag=True,
    help="Take over only the weights, and begin at step 0: averaged weights where that run keeps an average; "
    "--set start.state=trained takes the trained ones.",
)


ema_option: Decorator = click.option(
    "--ema", metavar="LENGTH", help="An average of this relative length, as in `ditlab evaluate --ema`."
)
train_address_option: Decorator = click.option(
    "--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone)."
)


def batch_option(default: int) -> Decorator:
    """Return the option `--batch` with its default."""
    text = "Samples at once; lower it where memory is short."
    return click.option("--batch", default=default, show_default=True, type=click.IntRange(min=1), help=text)


@contextmanager
def opened_run(name: str) -> Iterator[tuple[Run, ProgressBars]]:
    """Open a run of DITLAB_HOME, and show what is done with it inside as progress. Raises UserError."""
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.api.run import open_run

        progress.stage("opening the run")
        yield open_run(name, warn=progress.say, on_progress=progress), progress


def find_noted(name: str) -> FoundRun:
    """Find a run or sweep in DITLAB_HOME, and print the note on it, if any. Raises UserError."""
    from ditlab.tracking.records import find_run

    found = find_run(Home.from_environment(), name)
    if found.note:
        say(found.note)
    return found


def start_overrides(start_from: str | None, weights_only: bool, resume: str | None, prefix: str = "") -> list[str]:
    """Return what `--from` and `--weights-only` set in a spec, as `--set` takes it. Raises UserError."""
    if start_from is None and not weights_only:
        return []
    from ditlab.runs.forks import requested_start

    start = requested_start(start_from, weights_only, resume, Home.from_environment())
    return [prefix + start.override()] if start else []


def emit(result: Mapping[str, Any], as_json: bool, files: Iterable[Path] = ()) -> None:
    """Print a line for each of a command's files, and the JSON line for `--json`.

    JSON has no NaN or infinity: they become null.
    """
    for file in files:
        print_line(file, as_json)
    if as_json:
        click.echo(json.dumps(finite(result), allow_nan=False))


def finite(value: Any) -> Any:
    """A value, and what it holds, with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(message: str) -> None:
    """Print a line for people on standard error, without secrets and control characters."""
    click.echo(escape_for_terminal(message), err=True)


def print_line(text: object, as_json: bool = False) -> None:
    """Print a line of a command's result, such as a file's path: on standard output, or on standard error for `--json`.

    Secrets and control characters are made visible, as in `say`.
    """
    click.echo(escape_for_terminal(str(text)), err=as_json)


def print_yaml(mapping: Mapping[str, Any], as_json: bool = False) -> None:
    """Print a mapping as YAML: as it is in a file or pipe, with visible control characters on a terminal."""
    from ditlab.spec.yaml_text import dump_yaml

    text = dump_yaml(mapping)
    out = sys.stderr if as_json else sys.stdout
    click.echo(escape_for_terminal(text) if out.isatty() else text, nl=False, err=as_json)


def delivery_text(what: str, run_id: str, num_unsent: int) -> str:
    """Describe what has become of records that a command added to a run: sent to MLflow, or queued for it."""
    if not num_unsent:
        return f"{what} sent to MLflow, run {run_id}"
    records = f"{num_unsent:,} record{'s' if num_unsent > 1 else ''}"
    return (
        f"{what} queued for MLflow, which does not take them now ({records} to send); "
        f"`ditlab runs sync {run_id}` sends them"
    )


def console(as_json: bool) -> TerminalConsole:
    """Console of a command's tables, which reads no markup: standard output, or standard error for `--json`."""
    from ditlab.cli.progress import TerminalConsole

    return TerminalConsole(stderr=as_json)


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


def time_lines(summary: TimeSummary) -> list[str]:
    """Return the lines of the table: a heading, a line a phase, then utilisation, speed and memory."""
    from textwrap import wrap

    width = max(len("phase"), *(len(name) for name in summary.seconds))
    rows = [
        f"  {each.name:<{width}}  {each.seconds:>10,.2f}  {each.share:>6.1%}  {each.step_ms:>9,.2f}"
        for each in summary.shares()
    ]
    folded = [
        line for text in summary.sentences()
        for line in wrap(text, MOST_COLUMNS, initial_indent="  ", subsequent_indent="  ")
    ]  # fmt: skip
    head = f"  {'phase':<{width}}  {'seconds':>10}  {'share':>6}  {'ms a step':>9}"
    return [summary.heading(), head, *rows, *folded]
