"""`ditlab tune`, with the live table of a sweep's trials and the table of the trials that it would run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
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
    train_address_option,
    weights_only_option,
)
from ditlab.cli.progress import LiveDisplay, ProgressBars, status_text
from ditlab.cli.terminal import escape_line, print_plain
from ditlab.errors import UserError
from ditlab.reports.formatting import describe_value, format_duration, short_names, terminal_table
from ditlab.reports.sweep_records import ENDED, Trial, best

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep import Sweep
    from ditlab.sweeps.forecast import Forecast
    from ditlab.sweeps.prepare import PreparedSweep
    from ditlab.sweeps.results import SweepResult
    from ditlab.sweeps.session import SweepProgress


STATUS_TEXTS = {"finished": "finished", "interrupted": "interrupted", "stopped": "out of time"}
MAX_ROWS = 24  # for running trials, those that ended last, and the best
MOST_RUNNING = 4  # running trials that a line of progress names
_HEADS = ("workers", "parameters", "steps", "time")


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@set_option
@quick_option
@train_address_option
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
    columns = {"trial": "number", "run": "id"}
    columns |= {names[path]: "text" for path in sweep.space}
    columns |= {"status": "id", "step": "number"} | dict.fromkeys(sweep.metrics, "number")
    table = terminal_table(columns, title=title)
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


def forecast_table(prepared: PreparedSweep, expected: Forecast) -> RenderableType:
    """Trials, a row each; one row in all for a search that proposes trials as it goes.

    What is the same for all of several is above the table.
    """
    names = short_names(prepared.sweep.space, ("trial", *_HEADS))
    if prepared.trials:
        rows = [
            {"trial": str(trial.number)}
            | {name: describe_value(trial.values[path]) if path in trial.values else "" for path, name in names.items()}
            | _facts(
                trial.experiment, prepared, trial.num_parameters, trial.total_steps, expected.seconds.get(trial.number)
            )
            for trial in prepared.trials
        ]
    else:
        facts = _facts(prepared.base, prepared, None, prepared.total_steps, expected.seconds.get(0))
        axes = {names[path]: axis.kind for path, axis in prepared.sweep.space.items()}
        rows = [{"trial": f"{prepared.num_trials} of", **axes, **facts}]
    same = {name for name, text in rows[0].items() if len(rows) > 1 and all(row[name] == text for row in rows)}
    columns = {name: "text" if name in names.values() else "number" for name in rows[0] if name not in same}
    table = terminal_table(columns, ([escape_line(row[name]) for name in columns] for row in rows))
    shared = ", ".join(f"{name} {rows[0][name]}" for name in rows[0] if name in same and rows[0][name])
    return Group(Text(escape_line(f"all {len(rows)} trials: {shared}")), table) if shared else table


def _facts(
    experiment: Experiment, prepared: PreparedSweep, parameters: int | None, steps: int, seconds: float | None
) -> dict[str, str]:
    """Texts under the headings that follow the axes."""
    gpus = experiment.resources.gpus_per_worker
    each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
    return {
        "workers": f"{experiment.resources.max_workers} x {each}",
        "parameters": "" if parameters is None else f"{parameters:,}",
        "steps": f"{steps:,}",
        "time": "?" if seconds is None else format_duration(seconds),
    }
