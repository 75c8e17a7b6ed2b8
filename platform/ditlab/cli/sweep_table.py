"""Tables of a sweep's trials: a live one while it runs, and its forecast."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ditlab.reports.formatting import describe_value, format_duration, short_names
from ditlab.reports.sweeps.records import ENDED, Trial
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep.spec import Sweep
from ditlab.sweeps.forecast import Forecast
from ditlab.sweeps.prepare import PreparedSweep
from ditlab.sweeps.progress import SweepProgress

MAX_ROWS = 24  # for running trials, those that ended last, and the best
COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "stopped": "blue"}


class SweepTable:
    """Table of the trials that is rewritten in place; without a terminal, one line per ended trial.

    Use as a context manager.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._printed: set[int] = set()

    def __enter__(self) -> "SweepTable":
        return self

    def __exit__(self, *details: Any) -> None:
        if self._live:
            self._live.__exit__(*details)

    def update(self, progress: SweepProgress) -> None:
        """Show the trials as they are now."""
        if self._console.is_terminal:
            if not self._live:
                self._live = Live(console=self._console, refresh_per_second=2, transient=True)
                self._live.__enter__()
            self._live.update(trial_table(progress))
            return
        names = _axis_names(progress.sweep)
        for trial in progress.trials:
            if trial.status in ENDED and trial.number not in self._printed | progress.ended_before:
                self._printed.add(trial.number)
                sys.stderr.write(f"{_line(trial, names, progress.sweep.metrics)}\n")

    def say(self, message: str) -> None:
        """Print a message above the table; where there is no table, on standard error."""
        message = hide(message)
        if self._live:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{message}\n")

    def warn(self, message: str) -> None:
        """Print a warning, as `say` does."""
        self.say(f"warning: {message}")


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
        colour = COLOURS.get(trial.status, "white")
        table.add_row(
            f"{'*' if trial.number == best else ''}{trial.number}",
            trial.run_id if trial.status != "waiting" else "",
            *(escape(describe_value(trial.values[path])) if path in trial.values else "" for path in sweep.space),
            f"[{colour}]{trial.status}[/]", f"{trial.step:,}/{trial.total_steps:,}" if trial.total_steps else "",
            *(f"{trial.metrics[name]:.5g}" if name in trial.metrics else "" for name in sweep.metrics),
            style="bold" if trial.number == best else "",
        )  # fmt: skip
    return table


def forecast_table(prepared: PreparedSweep, expected: Forecast) -> Table:
    """Make a table with a row for each trial; one row in all for a search that proposes trials as it goes."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    paths = list(prepared.sweep.space)
    heads = ("workers", "parameters", "steps", "time")
    names = short_names(paths, ("trial", *heads))
    table.add_column("trial", justify="right", no_wrap=True)
    for path in paths:
        table.add_column(names[path], overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for trial in prepared.trials:
        values = trial.values
        table.add_row(
            str(trial.number), *(escape(describe_value(values[path])) if path in values else "" for path in paths),
            _workers(trial.experiment, prepared), f"{trial.num_parameters:,}", f"{trial.total_steps:,}",
            _time(expected.seconds.get(trial.number)),
        )  # fmt: skip
    if not prepared.trials:
        axes = [axis.kind for axis in prepared.sweep.space.values()]
        table.add_row(f"{prepared.num_trials} of", *axes, _workers(prepared.base, prepared), "",
                      f"{prepared.total_steps:,}", _time(expected.seconds.get(0)))  # fmt: skip
    return table


def _workers(experiment: Experiment, prepared: PreparedSweep) -> str:
    gpus = experiment.resources.gpus_per_worker
    each = f"{gpus:g} GPU" if gpus else f"{prepared.concurrency.share.threads} CPU"
    return f"{experiment.resources.max_workers} x {each}"


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else format_duration(seconds)


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
