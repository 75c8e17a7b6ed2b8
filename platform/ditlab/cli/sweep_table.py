"""Live table of a sweep's trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ditlab.cli.live_display import LiveDisplay
from ditlab.cli.plain_lines import print_plain
from ditlab.cli.terminal import status_text
from ditlab.reports.formatting import describe_value, short_names
from ditlab.reports.sweep_records import ENDED, Trial

if TYPE_CHECKING:
    from ditlab.spec.sweep.spec import Sweep
    from ditlab.sweeps.session import SweepProgress

MAX_ROWS = 24  # for running trials, those that ended last, and the best
MOST_RUNNING = 4  # running trials that a line of progress names


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
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("run", no_wrap=True)
    for path in sweep.space:
        table.add_column(names[path], overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for name in sweep.metrics:
        table.add_column(name, justify="right", no_wrap=True)
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
