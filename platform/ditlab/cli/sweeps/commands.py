"""`ditlab tune`, with the live table of a sweep's trials and the table of the trials that it would
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
from ditlab.reports.sweep_records import ENDED, SweepSummary, Trial, best, why_incomparable

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
        short = load_quick_sweep(sweep, overrides)
        source = short.spec
        overrides = ()
        changes = short.to_dict()
        for line in short.lines():
            output.say(line)
    if dry_run:
        with ProgressBars("loading PyTorch") as progress:
            from ditlab.api.sweeps import plan_sweep

            progress.stage("checking the trials, and timing a few steps")
            plan = plan_sweep(source, overrides, address=address, resume=resume, say=progress.say)
        for line in plan.notes:
            output.say(line)
        output.console(as_json).print(forecast_table(plan.prepared, plan.forecast))
        for line in plan.forecast.lines:
            output.print_line(line, as_json)
        output.emit({**plan.to_dict(), **changes}, as_json)
        output.hint(as_json, "tune", *output.repeated_arguments("dry_run", "as_json"))
        return 0

    with SweepTable() as table:
        from ditlab.api import sweeps

        result = sweeps.tune(
            source,
            overrides,
            address=address,
            resume=resume,
            grace=grace,
            on_progress=table.update,
            say=table.say,
            warn=table.warn,
        )
    for line in summary_lines(result):
        output.print_line(line, as_json)
    output.emit({**result.to_dict(), **changes}, as_json)
    if result.status == "stopped" and sweep:  # by a budget, which has to be larger then
        field = result.reason.partition(" ")[0].partition("=")[0]
        more = [] if field.isupper() else ["--set", f"{field}=MORE"]
        output.hint(
            False,
            "tune",
            *output.repeated_arguments("resume", "as_json"),
            "--resume",
            result.sweep_id,
            *more,
        )
    elif result.status != "finished":
        output.hint(False, "tune", "--resume", result.sweep_id)
    elif (best := result.report.parent / "best.yaml").exists():
        output.hint(as_json, "train", output.relative(best))
    return result.exit_code


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
    ended = (
        ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        or "none ended"
    )
    status = f"stopped, as {result.reason}" if result.reason else result.status
    lines = [f"sweep {result.sweep_id} {status}: {ended} of {summary.total_trials} trials"]
    if result.status == "stopped":
        lines.append(f"  not run to their end: {_left_over(summary)}")
    found = best(summary)
    if found:
        values = ", ".join(
            f"{path}={describe_value(value)}" for path, value in found.values.items()
        )
        metrics = ", ".join(f"{name} {found.metrics[name]:.5g}" for name in summary.metrics)
        where = f"{summary.unit} {found.number} (run {found.run_id}), {metrics}: {values}"
        if summary.num_seeds > 1:
            from ditlab.reports.sweep_report import seeds_lines

            lines += [f"  {line}" for line in seeds_lines(summary, where)]
        else:
            lines.append(f"  best: {where}")
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


def _left_over(summary: SweepSummary) -> str:
    """Describe the trials that a budget left over: `1 interrupted (trial 3), 4 not begun`."""
    interrupted = [str(trial.number) for trial in summary.runs if trial.status == "interrupted"]
    num_ended = sum(trial.has_ended for trial in summary.runs)
    # a scheduler may have added seeds
    num_waiting = max(0, summary.total_trials - len(interrupted) - num_ended)
    named = listed(interrupted, MOST_RUNNING)
    parts = [
        f"{len(interrupted)} interrupted (trial{'s' * (len(interrupted) > 1)} {named})"
    ] * bool(interrupted)
    return ", ".join([*parts, *[f"{num_waiting} not begun"] * bool(num_waiting)])


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
        names = _axis_names(progress.sweep)
        for trial in progress.trials if not self._is_live else ():
            if trial.number in self._printed or trial.number in progress.ended_before:
                continue
            if trial.status in ENDED:
                self._printed.add(trial.number)
                values = ", ".join(
                    f"{names[path]}={describe_value(value)}" for path, value in trial.values.items()
                )
                values += f", seed {trial.seed}" if trial.seed is not None else ""
                metrics = (name for name in progress.sweep.metrics if name in trial.metrics)
                measured = " ".join(f"{name} {trial.metrics[name]:.5g}" for name in metrics)
                result = trial.note if trial.status == "failed" else measured
                line = (
                    f"trial {trial.number} ({values}): {trial.status} at step {trial.step}, "
                    f"{result}"
                )
                print_plain(line.rstrip(", "))

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


def trial_table(progress: SweepProgress) -> Table:
    """Make a table with a row for each trial, in order of their number: the best, then those that
    fit on a screen.
    """
    sweep = progress.sweep
    best = progress.leader
    names = _axis_names(sweep)
    columns = {"trial": "number", "run": "id"} | (
        {"configuration": "number", "seed": "number"} if sweep.num_seeds > 1 else {}
    )
    columns |= {names[path]: "text" for path in sweep.space}
    columns |= {"status": "id", "step": "number"} | dict.fromkeys(sweep.metrics, "number")
    title = f"{sweep.name} ({progress.sweep_id}) · {progress.counts}"
    table = terminal_table(columns, title=title, optional=("run", "seed", "configuration"))

    def order(trial: Trial) -> tuple[bool, bool, bool, int]:
        """The best, those that run, those that ended last, those that come next."""
        is_waiting = trial.status == "waiting"
        return (
            trial.configuration != best,
            is_waiting,
            trial.status in ENDED,
            trial.number * (1 if is_waiting else -1),
        )

    shown = sorted(progress.trials, key=order)[:MAX_ROWS]
    for trial in sorted(shown, key=lambda trial: trial.number):
        table.add_row(
            f"{'*' if trial.configuration == best else ''}{trial.number}",
            trial.run_id if trial.status != "waiting" else "",
            *(
                (str(trial.configuration), "" if trial.seed is None else str(trial.seed))
                if sweep.num_seeds > 1
                else ()
            ),
            *(
                describe_value(trial.values[path]) if path in trial.values else ""
                for path in sweep.space
            ),
            status_text(trial.status),
            f"{trial.step:,}/{trial.total_steps:,}" if trial.total_steps else "",
            *(
                f"{trial.metrics[name]:.5g}" if name in trial.metrics else ""
                for name in sweep.metrics
            ),
            style="bold" if trial.configuration == best else "",
        )
    return table


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

    def facts(experiment: Experiment, parameters: str, steps: int, number: int) -> dict[str, str]:
        gpus = experiment.resources.gpus_per_worker
        seconds = expected.seconds.get(number)
        each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
        time = "?" if seconds is None else format_duration(seconds)
        workers = f"{experiment.resources.max_workers} x {each}"
        return {"workers": workers, "parameters": parameters, "steps": f"{steps:,}", "time": time}

    unit = "configuration" if prepared.sweep.num_seeds > 1 else "trial"
    seeds = len(prepared.sweep.first_seeds)
    names = short_names(prepared.sweep.space, (unit, "workers", "parameters", "steps", "time"))
    if prepared.trials:
        rows = [
            {unit: str(trial.configuration)}
            | {
                name: describe_value(trial.values[path]) if path in trial.values else ""
                for path, name in names.items()
            }
            | facts(trial.experiment, f"{trial.num_parameters:,}", trial.total_steps, trial.number)
            # the first seed of each configuration
            for trial in prepared.trials[: len(prepared.trials) // seeds]
        ]
    else:
        axes = {names[path]: axis.kind for path, axis in prepared.sweep.space.items()}
        rows = [
            {
                unit: f"{prepared.num_trials // seeds} of",
                **axes,
                **facts(prepared.base, "", prepared.total_steps, 0),
            }
        ]
    same = {
        name
        for name, text in rows[0].items()
        if len(rows) > 1 and all(row[name] == text for row in rows)
    }
    columns = {
        name: "text" if name in names.values() else "number" for name in rows[0] if name not in same
    }
    table = terminal_table(columns, ([escape_line(row[name]) for name in columns] for row in rows))
    shared = ", ".join(
        f"{name} {rows[0][name]}" for name in rows[0] if name in same and rows[0][name]
    )
    if shared:
        return Group(Text(escape_line(f"all {len(rows)} {unit}s: {shared}")), table)
    return table
