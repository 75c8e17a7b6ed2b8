"""`ditlab tune`, with the live table of a sweep's trials and the table of the trials that it would run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ditlab.cli.options import (
    complete_resume,
    console,
    emit,
    hint,
    json_option,
    print_line,
    quick_option,
    relative,
    repeated_arguments,
    say,
    say_resume,
    set_option,
    short_path,
    start_option,
    start_overrides,
    weights_only_option,
)
from ditlab.cli.progress import ColumnKind, LiveDisplay, ProgressBars, list_table, status_text
from ditlab.cli.terminal import escape_line, print_plain
from ditlab.errors import UserError
from ditlab.reports.formatting import describe_value, format_duration, short_names
from ditlab.reports.sweep_records import ENDED, Trial, best

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep import Sweep
    from ditlab.sweeps.finish import SweepResult
    from ditlab.sweeps.forecast import Forecast
    from ditlab.sweeps.prepare import PreparedSweep
    from ditlab.sweeps.session import SweepProgress


STATUS_TEXTS = {"finished": "finished", "interrupted": "interrupted", "stopped": "out of time"}
MAX_ROWS = 24  # for running trials, those that ended last, and the best
MOST_RUNNING = 4  # running trials that a line of progress names
_HEADS = ("workers", "parameters", "steps", "time")
_GAP = 2  # columns between two of the table's
Row = Mapping[str, str]


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@set_option
@quick_option
@click.option("--address", help="Ray cluster to train on (default: RAY_ADDRESS, else this machine alone).")
@click.option(
    "--resume", metavar="SWEEP_ID|auto", shell_complete=complete_resume,
    help="Continue a sweep: trials that have ended are not run again; `auto`: the newest unfinished one, if any.",
)  # fmt: skip
@start_option
@weights_only_option
@click.option("--dry-run", is_flag=True, help="Show the trials, their resources, parameters and time; start nothing.")
@json_option
def tune(
    sweep: Path | None, overrides: tuple[str, ...], quick: bool, address: str | None, resume: str | None,
    start_from: str | None, weights_only: bool, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run the trials of a sweep, rank them, and write a report. Ctrl-C ends it after a checkpoint of each trial."""
    overrides = (*start_overrides(start_from, weights_only, resume, "fixed."), *overrides)
    source, overrides, changes = _shorten(sweep, overrides) if quick else (sweep, overrides, {})
    if dry_run:
        _show_plan(source, overrides, changes, address, resume, as_json)
        return 0

    with SweepTable() as table:
        from ditlab.api import sweeps

        result = sweeps.tune(
            source, overrides, address=address, resume=resume,
            on_progress=table.update, say=table.say, warn=table.warn,
        )  # fmt: skip
    for line in summary_lines(result):
        print_line(line, as_json)
    emit({**result.to_dict(), **changes}, as_json)
    if result.status != "finished":
        say_resume("tune", "--resume", result.sweep_id)
    elif (best := result.report.parent / "best.yaml").exists():
        hint(as_json, "train", relative(best))
    return result.exit_code


def _shorten(sweep: Path | None, overrides: tuple[str, ...]) -> tuple[Sweep, tuple[str, ...], dict[str, Any]]:
    """Load the sweep, made short for `--quick`: the sweep, no overrides, and the changes for `--json`.

    Prints the changes for people. Raises UserError where no file is named.
    """
    from ditlab.spec.quick import load_quick_sweep

    if sweep is None:
        raise UserError("--quick shortens a sweep's file, and none is given; name the sweep's YAML as well.")
    short = load_quick_sweep(sweep, overrides)
    for line in short.lines():
        say(line)
    return short.spec, (), short.to_dict()


def _show_plan(
    sweep: Path | Sweep | None, overrides: tuple[str, ...], changes: dict[str, Any], address: str | None,
    resume: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the trials, and how long they will take."""
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.api.sweeps import plan_sweep

        progress.stage("checking the trials, and timing a few steps")
        plan = plan_sweep(sweep, overrides, address=address, resume=resume, say=progress.say)

    for line in plan.notes:
        say(line)
    console(as_json).print(forecast_table(plan.prepared, plan.forecast))
    for line in plan.forecast.lines:
        print_line(line, as_json)
    emit({**plan.to_dict(), **changes}, as_json)
    hint(as_json, "tune", *repeated_arguments("dry_run", "as_json"))


def summary_lines(result: SweepResult) -> list[str]:
    """Write lines with the counts of trials, the best trial, the report and the command that resumes the sweep."""
    summary = result.summary
    counts = {status: sum(trial.status == status for trial in summary.trials) for status in ENDED}
    ended = ", ".join(f"{number} {status}" for status, number in counts.items() if number) or "none ended"
    lines = [f"sweep {result.sweep_id} {STATUS_TEXTS[result.status]}: {ended} of {summary.total_trials} trials"]
    if found := best(summary):
        values = ", ".join(f"{path}={describe_value(value)}" for path, value in found.values.items())
        metrics = ", ".join(f"{name} {found.metrics[name]:.5g}" for name in summary.metrics)
        lines.append(f"  best: trial {found.number} (run {found.run_id}), {metrics}: {values}")
    lines.append(f"  report: {short_path(result.report)}")
    for trial in summary.trials:
        if trial.status == "failed":
            reason = trial.note.partition("\n")[0]
            lines.append(f"  trial {trial.number} (run {trial.run_id}) failed: {reason[:200]}")
    return lines


class SweepTable(LiveDisplay):
    """Table of the trials that is rewritten in place; in a log, a line for each ended trial, and lines of progress.

    Use as a context manager.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._progress: SweepProgress | None = None
        self._printed: set[int] = set()

    def update(self, progress: SweepProgress) -> None:
        """Show the trials as they are now."""
        self._progress = progress
        if self._is_live:
            return
        names = _axis_names(progress.sweep)
        for trial in progress.trials:
            if trial.status in ENDED and trial.number not in self._printed | progress.ended_before:
                self._printed.add(trial.number)
                print_plain(_line(trial, names, progress.sweep.metrics))

    def render(self) -> RenderableType:
        """Table of the trials."""
        return trial_table(self._progress) if self._progress else Text("preparing the sweep ...")

    def describe(self) -> str:
        """Counts of the trials, and the steps of those that train."""
        return describe_sweep(self._progress) if self._progress else "preparing the sweep ..."


def describe_sweep(progress: SweepProgress) -> str:
    """A sweep's state in a line: `2 running, 3 finished of 8 · trial 3 at step 120/600, trial 4 at step 80/600`."""
    running = [trial for trial in progress.trials if trial.status == "running" and trial.total_steps]
    shown = [f"trial {trial.number} at step {trial.step:,}/{trial.total_steps:,}" for trial in running[:MOST_RUNNING]]
    more = [f"{len(running) - MOST_RUNNING} more"] if len(running) > MOST_RUNNING else []
    return " · ".join([progress.counts, *([", ".join([*shown, *more])] if shown else [])])


def trial_table(progress: SweepProgress) -> Table:
    """Make a table with a row for each trial that fits on a screen."""
    sweep, best = progress.sweep, progress.leader
    names = _axis_names(sweep)
    title = f"{sweep.name} ({progress.sweep_id}) · {progress.counts}"
    columns: dict[str, ColumnKind] = {"trial": "number", "run": "id"}
    columns |= {names[path]: "long" for path in sweep.space}
    table = list_table(columns | {"status": "id", "step": "number"} | dict.fromkeys(sweep.metrics, "number"), title)
    for trial in _select(progress.trials, best):
        table.add_row(
            f"{'*' if trial.number == best else ''}{trial.number}",
            trial.run_id if trial.status != "waiting" else "",
            *(describe_value(trial.values[path]) if path in trial.values else "" for path in sweep.space),
            status_text(trial.status), f"{trial.step:,}/{trial.total_steps:,}" if trial.total_steps else "",
            *(f"{trial.metrics[name]:.5g}" if name in trial.metrics else "" for name in sweep.metrics),
            style="bold" if trial.number == best else "",
        )  # fmt: skip
    return table


def _axis_names(sweep: Sweep) -> dict[str, str]:
    """Short names of the axes that differ from the table's other columns."""
    return short_names(sweep.space, ("trial", "run", "status", "step", *sweep.metrics))


def _line(trial: Trial, names: Mapping[str, str], metrics: Sequence[str]) -> str:
    """Describe an ended trial: `trial 0 (lr=0.001): finished at step 600, eval/velocity 0.5`."""
    values = ", ".join(f"{names[path]}={describe_value(value)}" for path, value in trial.values.items())
    measured = " ".join(f"{name} {trial.metrics[name]:.5g}" for name in metrics if name in trial.metrics)
    result = trial.note if trial.status == "failed" else measured
    return f"trial {trial.number} ({values}): {trial.status} at step {trial.step}, {result}".rstrip(", ")


def _select(trials: Sequence[Trial], best: int | None) -> list[Trial]:
    """Select the trials that fit on a screen, in order of their number."""
    weight = {"running": 0, "interrupted": 1, "finished": 2, "stopped": 2, "failed": 2, "waiting": 3}

    def order(trial: Trial) -> tuple[int, int]:
        if trial.number == best:
            return -1, 0
        return weight.get(trial.status, 1), trial.number if trial.status == "waiting" else -trial.number

    return sorted(sorted(trials, key=order)[:MAX_ROWS], key=lambda trial: trial.number)


def forecast_table(prepared: PreparedSweep, expected: Forecast, width: int = 80) -> RenderableType:
    """Trials, a row each; one row in all for a search that proposes trials as it goes.

    What is the same for all stands above the table. Where a word or a number would have to be broken, the trials are
    paragraphs instead of rows.
    """
    rows = [{key: escape_line(text) for key, text in row.items()} for row in _rows(prepared, expected)]
    same = {name: text for name, text in rows[0].items() if all(row[name] == text for row in rows[1:])}
    if len(rows) == 1:
        same = {}
    names = [name for name in rows[0] if name not in same]
    lines = _wrapped([f"all {len(rows)} trials:", *_listed(same)], width) if same else []
    longest = {name: max(_longest_word(text) for text in (name, *(row[name] for row in rows))) for name in names}
    if sum(longest.values()) + _GAP * (len(names) - 1) > width:
        for row in rows:
            lines += _wrapped([f"trial {row['trial']}:", *_listed({name: row[name] for name in names[1:]})], width)
        return Text("\n".join(lines))
    return Group(*([Text("\n".join(lines))] if lines else []), _table(names, rows, longest))


def _table(names: Sequence[str], rows: Iterable[Row], longest: Mapping[str, int]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        is_axis = name not in ("trial", *_HEADS)
        table.add_column(name, justify="left" if is_axis else "right", min_width=longest[name], no_wrap=not is_axis)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _rows(prepared: PreparedSweep, expected: Forecast) -> list[Row]:
    """Texts by heading, of each trial."""
    paths = list(prepared.sweep.space)
    names = short_names(paths, ("trial", *_HEADS))
    if not prepared.trials:
        axes = {names[path]: axis.kind for path, axis in prepared.sweep.space.items()}
        seconds = expected.seconds.get(0)
        return [{"trial": f"{prepared.num_trials} of", **axes, **_facts(prepared.base, prepared, None,
                 prepared.total_steps, seconds)}]  # fmt: skip
    return [
        {
            "trial": str(trial.number),
            **{names[path]: describe_value(trial.values[path]) if path in trial.values else "" for path in paths},
            **_facts(trial.experiment, prepared, trial.num_parameters, trial.total_steps,
                     expected.seconds.get(trial.number)),
        }
        for trial in prepared.trials
    ]  # fmt: skip


def _facts(
    experiment: Experiment, prepared: PreparedSweep, parameters: int | None, steps: int, seconds: float | None
) -> Row:
    """Texts under the headings that follow the axes."""
    gpus = experiment.resources.gpus_per_worker
    each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
    return {
        "workers": f"{experiment.resources.max_workers} x {each}",
        "parameters": "" if parameters is None else f"{parameters:,}",
        "steps": f"{steps:,}",
        "time": "?" if seconds is None else format_duration(seconds),
    }


def _listed(texts: Row) -> list[str]:
    """`lr 0.001,` and so on, without what is empty."""
    found = [f"{name} {text}" for name, text in texts.items() if text]
    return [f"{each}," for each in found[:-1]] + found[-1:]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Lines of at most `width` columns, broken between parts, or between words of a part longer than a line."""
    lines = [""]
    for part in parts:
        words = [part] if cell_len(part) + 2 <= width else part.split()
        for word in words:
            if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
                lines.append(f"  {word}")
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
