"""`ditlab tune`, with the live table of a sweep's trials and the table of the trials that it would
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ditlab.cli import options, output
from ditlab.cli.progress import LiveDisplay, ProgressBars, status_text
from ditlab.cli.terminal import escape_line, print_plain
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import SweepKind, load_part
from ditlab.reports.formatting import (
    describe_value,
    format_duration,
    listed,
    short_names,
    terminal_table,
)
from ditlab.reports.sweep_records import (
    ENDED,
    SweepSummary,
    Trial,
    best,
    steps_sentence,
    value_step,
    why_incomparable,
)

if TYPE_CHECKING:
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.sweep import Sweep
    from ditlab.sweeps.forecast import Forecast
    from ditlab.sweeps.prepare import PreparedSweep
    from ditlab.sweeps.progress import SweepProgress
    from ditlab.sweeps.results import SweepResult


MAX_ROWS = 24  # for running trials, those that ended last, and the best
MOST_RUNNING = 4  # running trials that a line of progress names


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@options.overrides
@options.quick
@options.train_address
@click.option(
    "--resume",
    metavar="SWEEP_ID|auto",
    help=(
        "Continue a sweep: trials that have ended are not run again; `auto`: the newest "
        "unfinished one, if any."
    ),
)
@options.start
@options.grace
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Show the trials, or the configurations of several seeds, their resources, parameters "
        "and time; start nothing."
    ),
)
@options.as_json
def tune(
    sweep: Path | None,
    overrides: tuple[str, ...],
    quick: bool,
    address: str | None,
    resume: str | None,
    start_from: str | None,
    weights_only: bool,
    grace: float,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the trials of a sweep, rank them, and write a report. Ctrl-C ends it after a checkpoint
    of each trial.

    With `seeds: N`, `trials` counts configurations: each is trained under N seeds (trials x N runs)
    and ranked by its mean.
    """
    from ditlab.api.specs import kind_of_sweep

    Home.from_environment()  # one that is refused shows before PyTorch is loaded
    kind = kind_of_sweep(sweep, resume) if sweep or not quick else None
    if kind is not None:
        refused = {
            "--quick": quick,
            "--address": address,
            "--from": start_from,
            "--weights-only": weights_only,
        }
        return _tune_of_kind(kind, refused, sweep, overrides, resume, dry_run, as_json)
    overrides = (*options.start_overrides(start_from, weights_only, resume, "fixed."), *overrides)
    source: Path | Sweep | None = sweep
    changes: dict[str, Any] = {}
    if quick:
        from ditlab.spec.quick import load_quick_sweep

        if sweep is None:
            raise UserError(
                "--quick shortens a sweep's file, and none is given; name the sweep's YAML as well."
            )
        source, changes = output.say_changes(load_quick_sweep(sweep, overrides))
        overrides = ()
    settings: dict[str, Any] = {"overrides": overrides, "address": address, "resume": resume}
    if dry_run:
        _show_plan(source, settings, changes, as_json)
        return 0

    with SweepTable() as table:
        from ditlab.api import sweeps

        result = sweeps.tune(
            source,
            **settings,
            grace=grace,
            on_progress=table.update,
            say=table.say,
            warn=table.warn,
        )
    for line in summary_lines(result):
        output.print_line(line, as_json)
    output.emit({**result.to_dict(), **changes}, as_json)
    best = result.report.parent / "best.yaml"
    if result.status == "stopped" and sweep:
        _hint_larger_budget(result)
    elif result.status != "finished":
        output.hint(False, "tune", "--resume", result.sweep_id)
    elif best.exists():
        output.hint(as_json, "train", output.relative(best))
    return result.exit_code


def _show_plan(
    source: Path | Sweep | None,
    settings: Mapping[str, Any],
    changes: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print the trials of a sweep that is not started, and how long they would take."""
    with ProgressBars("loading PyTorch") as progress:
        from ditlab.api.sweeps import plan_sweep

        progress.stage("checking the trials, and timing a few steps")
        plan = plan_sweep(source, **settings, say=progress.say)
    for line in plan.notes:
        output.say(line)
    output.console(as_json).print(forecast_table(plan.prepared, plan.forecast))
    for line in plan.forecast.lines:
        output.print_line(line, as_json)
    output.emit({**plan.to_dict(), **changes}, as_json)
    output.hint(as_json, "tune", *output.repeated_arguments("dry_run", "as_json"))


def _hint_larger_budget(result: SweepResult) -> None:
    """Print the command that goes on with a sweep that a budget has stopped: with a larger one."""
    field = result.reason.partition(" ")[0].partition("=")[0]
    larger = ["--set", f"{field}=MORE"]
    if field.isupper():  # a variable of the environment
        larger = []
    arguments = output.repeated_arguments("resume", "as_json")
    output.hint(False, "tune", *arguments, "--resume", result.sweep_id, *larger)


def _tune_of_kind(kind: SweepKind, refused: Mapping[str, object], *arguments: object) -> int:
    """Run, or forecast, a sweep that trains nothing. `refused` are values of options that are for
    others.
    """
    for name, value in refused.items():
        if value:
            raise UserError(
                f"{name} is for sweeps that train, and a {kind.noun} trains nothing; leave it out."
            )
    run: Callable[..., int] = load_part("sweep's base", kind.name, kind.target)
    return run(*arguments)


def summary_lines(result: SweepResult) -> list[str]:
    """Write lines with the counts of trials, the best trial, the report and the command that
    resumes the sweep.
    """
    summary = result.summary
    counts = {status: sum(trial.status == status for trial in summary.runs) for status in ENDED}
    ended = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    status = f"stopped, as {result.reason}" if result.reason else result.status
    lines = [
        f"sweep {result.sweep_id} {status}: {ended or 'none ended'} of "
        f"{summary.total_trials} trials"
    ]
    if result.status == "stopped":
        lines.append(f"  not run to their end: {_left_over(summary)}")
    lines += _best_lines(summary)
    reason = why_incomparable(summary)
    if reason:
        lines.append(f"  {reason}")
    if result.report.is_file():
        lines.append(f"  report: {output.short_path(result.report)}")
    for trial in summary.runs:
        if trial.status == "failed":
            reason = trial.note.partition("\n")[0]
            lines.append(f"  trial {trial.number} (run {trial.run_id}) failed: {reason[:200]}")
    return lines


def _best_lines(summary: SweepSummary) -> list[str]:
    """Lines on the best trial or configuration, and the seeds of the latter; none without one."""
    found = best(summary)
    if found is None:
        return []
    values = ", ".join(f"{path}={describe_value(value)}" for path, value in found.values.items())
    metrics = ", ".join(f"{name} {found.metrics[name]:.5g}" for name in summary.metrics)
    steps = steps_sentence(summary)
    if steps:
        metrics += f" at step {value_step(summary, found):,}"
    where = f"{summary.unit} {found.number} (run {found.run_id}), {metrics}: {values}"
    lines = [f"best: {where}"]
    if summary.num_seeds > 1:
        from ditlab.reports.sweep_report import seeds_lines

        lines = seeds_lines(summary, where)
    return [f"  {line}" for line in (*lines, steps) if line]


def _left_over(summary: SweepSummary) -> str:
    """Describe the trials that a budget left over: `1 interrupted (trial 3), 4 not begun`."""
    interrupted = [str(trial.number) for trial in summary.runs if trial.status == "interrupted"]
    num_ended = sum(trial.has_ended for trial in summary.runs)
    # a scheduler may have added seeds
    num_waiting = max(0, summary.total_trials - len(interrupted) - num_ended)
    parts = []
    if interrupted:
        plural = "s" if len(interrupted) > 1 else ""
        named = listed(interrupted, MOST_RUNNING)
        parts.append(f"{len(interrupted)} interrupted (trial{plural} {named})")
    if num_waiting:
        parts.append(f"{num_waiting} not begun")
    return ", ".join(parts)


class SweepTable(LiveDisplay):
    """Table of the trials, rewritten in place; in a log, a line for each ended trial, and lines of
    progress.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("preparing the sweep", console, clock)
        self._progress: SweepProgress | None = None
        self._printed: set[int] = set()

    def update(self, progress: SweepProgress) -> None:
        """Show the trials as they are now."""
        self._progress = progress
        if self._is_live:
            return
        for trial in progress.trials:
            is_new = trial.number not in self._printed and trial.number not in progress.ended_before
            if is_new and trial.status in ENDED:
                self._printed.add(trial.number)
                print_plain(_trial_line(trial, progress.sweep))

    def render(self) -> RenderableType:
        """Table of the trials."""
        if self._progress:
            return trial_table(self._progress)
        return super().render()

    def describe(self) -> str:
        """Counts, and steps of trials that train: `2 running of 8 · trial 3 at step 120/600,
        ...`.
        """
        if not self._progress:
            return super().describe()
        running = [
            trial
            for trial in self._progress.trials
            if trial.status == "running" and trial.total_steps
        ]
        shown = [
            f"trial {each.number} at step {each.step:,}/{each.total_steps:,}"
            for each in running[:MOST_RUNNING]
        ]
        if len(running) > MOST_RUNNING:
            shown.append(f"{len(running) - MOST_RUNNING} more")
        return " · ".join(filter(None, [self._progress.counts, ", ".join(shown)]))


def _trial_line(trial: Trial, sweep: Sweep) -> str:
    """Line of a log on a trial that has ended: its values, and its metrics or why it failed."""
    names = _axis_names(sweep)
    values = ", ".join(
        f"{names[path]}={describe_value(value)}" for path, value in trial.values.items()
    )
    if trial.seed is not None:
        values += f", seed {trial.seed}"
    result = trial.note
    if trial.status != "failed":
        measured = (name for name in sweep.metrics if name in trial.metrics)
        result = " ".join(f"{name} {trial.metrics[name]:.5g}" for name in measured)
    line = f"trial {trial.number} ({values}): {trial.status} at step {trial.step}, {result}"
    return line.rstrip(", ")


def trial_table(progress: SweepProgress) -> Table:
    """Make a table with a row for each trial, in order of their number: the best, then those that
    fit on a screen.
    """
    sweep = progress.sweep
    best = progress.leader
    names = _axis_names(sweep)
    columns = {"trial": "number", "run": "id"}
    if sweep.num_seeds > 1:
        columns |= {"configuration": "number", "seed": "number"}
    columns |= {names[path]: "text" for path in sweep.space}
    columns |= {"status": "id", "step": "number"} | dict.fromkeys(sweep.metrics, "number")
    title = f"{sweep.name} ({progress.sweep_id}) · {progress.counts}"
    table = terminal_table(columns, title=title, optional=("run", "seed", "configuration"))

    def order(trial: Trial) -> tuple[bool, bool, bool, int]:
        """The best, those that run, those that ended last, those that come next."""
        is_waiting = trial.status == "waiting"
        place = trial.number if is_waiting else -trial.number
        return (trial.configuration != best, is_waiting, trial.status in ENDED, place)

    shown = sorted(progress.trials, key=order)[:MAX_ROWS]
    for trial in sorted(shown, key=lambda trial: trial.number):
        is_best = trial.configuration == best
        cells = _trial_cells(trial, sweep, "*" if is_best else "")
        table.add_row(*cells, style="bold" if is_best else "")
    return table


def _trial_cells(trial: Trial, sweep: Sweep, mark: str) -> Iterator[str | Text]:
    """Cells of a trial's row; `mark` stands before its number."""
    yield f"{mark}{trial.number}"
    yield "" if trial.status == "waiting" else trial.run_id
    if sweep.num_seeds > 1:
        yield str(trial.configuration)
        yield "" if trial.seed is None else str(trial.seed)
    yield from _axis_cells(trial.values, sweep.space)
    yield status_text(trial.status)
    yield f"{trial.step:,}/{trial.total_steps:,}" if trial.total_steps else ""
    for name in sweep.metrics:
        yield f"{trial.metrics[name]:.5g}" if name in trial.metrics else ""


def _axis_cells(values: Mapping[str, Any], paths: Iterable[str]) -> list[str]:
    """A trial's value on each axis; empty where its `when` does not hold."""
    return [describe_value(values[path]) if path in values else "" for path in paths]


def _axis_names(sweep: Sweep) -> dict[str, str]:
    """Short names of the axes that differ from the table's other columns."""
    return short_names(
        sweep.space, ("trial", "run", "configuration", "seed", "status", "step", *sweep.metrics)
    )


def forecast_table(prepared: PreparedSweep, expected: Forecast) -> RenderableType:
    """Trials or configurations, a row each, or one in all for a search that proposes them; what
    they share is above the table.

    The time is that of one run.
    """
    unit = "configuration" if prepared.sweep.num_seeds > 1 else "trial"
    names = short_names(prepared.sweep.space, (unit, "workers", "parameters", "steps", "time"))
    rows = _planned_rows(prepared, expected, unit, names)
    first = rows[0]
    same: set[str] = set()
    if len(rows) > 1:
        same = {name for name in first if all(row[name] == first[name] for row in rows)}
    kinds = dict.fromkeys(first, "number") | dict.fromkeys(names.values(), "text")
    columns = {name: kinds[name] for name in first if name not in same}
    table = terminal_table(columns, ([escape_line(row[name]) for name in columns] for row in rows))
    shared = ", ".join(f"{name} {text}" for name, text in first.items() if text and name in same)
    if shared:
        return Group(Text(escape_line(f"all {len(rows)} {unit}s: {shared}")), table)
    return table


def _planned_rows(
    prepared: PreparedSweep, expected: Forecast, unit: str, names: Mapping[str, str]
) -> list[dict[str, str]]:
    """Cells by column of each trial or configuration; one row for a search that proposes them."""

    def facts(experiment: Experiment, parameters: str, steps: int, number: int) -> dict[str, str]:
        gpus = experiment.resources.gpus_per_worker
        seconds = expected.seconds.get(number)
        each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
        time = "?" if seconds is None else format_duration(seconds)
        workers = f"{experiment.resources.max_workers} x {each}"
        return {"workers": workers, "parameters": parameters, "steps": f"{steps:,}", "time": time}

    seeds = len(prepared.sweep.first_seeds)
    if not prepared.trials:
        axes = {names[path]: axis.kind for path, axis in prepared.sweep.space.items()}
        shared = facts(prepared.base, "", prepared.total_steps, 0)
        return [{unit: f"{prepared.num_trials // seeds} of", **axes, **shared}]
    rows = []
    for trial in prepared.trials[: len(prepared.trials) // seeds]:  # of each the first seed
        values = dict(zip(names.values(), _axis_cells(trial.values, names), strict=True))
        parameters = f"{trial.num_parameters:,}"
        own = facts(trial.experiment, parameters, trial.total_steps, trial.number)
        rows.append({unit: str(trial.configuration), **values, **own})
    return rows
