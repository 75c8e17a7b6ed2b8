"""Memory of a resumed sweep: what the journals of its trials tell of the evaluations that its
scheduler has seen, and of the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ditlab.home import Home
from ditlab.reports.sweep_records import ENDED, Trial
from ditlab.spec.sweep import Sweep
from ditlab.sweeps.folder import Takeover, find_record, read_takeovers
from ditlab.tracking.history import metric_history
from ditlab.tracking.journal import TRAIN_LOSS


@dataclass(frozen=True)
class TrialEvaluation:
    """An evaluation of a trial after its first step."""

    step: int
    value: float
    """The sweep's first metric."""
    time: int
    """Milliseconds since 1970."""


@dataclass(frozen=True)
class PastTrial:
    """A trial as an earlier session left it."""

    number: int
    run_id: str
    values: Mapping[str, Any]
    """Value by axis path with which it began."""
    status: str = "waiting"
    evaluations: Sequence[TrialEvaluation] = ()
    """In the order of their steps."""
    last_step: int = 0
    """Last step that its journal holds."""
    total_steps: int = 0
    takeovers: Sequence[Takeover] = ()

    @property
    def has_ended(self) -> bool:
        """True if the trial is not run again."""
        return self.status in ENDED

    def has_passed(self, step: int) -> bool:
        """Return True where the trial has done something after its evaluation at a step."""
        return self.last_step > step or any(each.step >= step for each in self.takeovers)

    def value_at(self, step: int) -> float | None:
        """Value of the metric at a step; None where it was not evaluated there."""
        return next((each.value for each in self.evaluations if each.step == step), None)

    def values_before(self, step: int) -> Mapping[str, Any]:
        """Value by axis path with which the trial reached a step."""
        values = self.values
        for takeover in self.takeovers:
            if takeover.step < step:
                values = takeover.values
        return values


def read_memory(home: Home, sweep: Sweep, trials: Iterable[Trial]) -> list[PastTrial]:
    """Read what the journals of the ledger's trials hold, those of unfinished and failed trials
    too.
    """
    return [_read_trial(home, sweep.metrics[0], trial) for trial in trials]


def _read_trial(home: Home, metric: str, trial: Trial) -> PastTrial:
    record = find_record(home, trial)
    if record is None:  # it has not begun
        return PastTrial(trial.number, trial.run_id, trial.values)
    folder = home.run(trial.run_id)
    history = metric_history(folder)
    evaluations = []
    last_step = 0
    if metric in history:
        series = history[metric]
        points = zip(
            series.steps.tolist(), series.values.tolist(), series.times.tolist(), strict=True
        )
        evaluations = [TrialEvaluation(*point) for point in points if point[0] > 0]
    for name in (metric, TRAIN_LOSS):
        if name in history and len(history[name].steps):
            last_step = max(last_step, int(history[name].steps[-1]))
    return PastTrial(
        trial.number,
        trial.run_id,
        trial.values,
        record.status,
        evaluations,
        last_step,
        record.total_steps,
        read_takeovers(folder),
    )


@dataclass(frozen=True)
class SeenEvaluation:
    """An evaluation that a scheduler has seen."""

    run_id: str
    step: int
    value: float
    is_end: bool
    """True for the last step of a trial, after which nothing is decided."""
    went_on: bool
    """True where the trial trained on, so that the scheduler did not stop it here."""


def in_order(past: Sequence[PastTrial]) -> list[SeenEvaluation]:
    """Sort the evaluations of all trials by the time at which they were measured, those of one
    trial by their steps.
    """
    timed = []
    for trial in past:
        time = 0
        for each in trial.evaluations:
            time = max(time, each.time)  # a clock may be set back
            is_end = each.step >= trial.total_steps > 0
            went_on = trial.last_step > each.step
            seen = SeenEvaluation(trial.run_id, each.step, each.value, is_end, went_on)
            timed.append(((time, trial.number, each.step), seen))
    return [seen for _, seen in sorted(timed, key=lambda each: each[0])]


@dataclass(frozen=True)
class Member:
    """A trial of a population at a perturbation."""

    number: int
    run_id: str
    values: Mapping[str, Any]
    """Value by axis path with which it reached the step."""
    value: float
    """The metric at the step."""


@dataclass(frozen=True)
class Generation:
    """Perturbation of a population that has all its values."""

    step: int = 0
    members: Sequence[Member] = ()
    open_numbers: frozenset[int] = field(default_factory=frozenset)
    """Numbers of the trials that have done nothing since."""


def last_generation(past: Sequence[PastTrial], interval: int, total_steps: int) -> Generation:
    """Return the last perturbation for which no trial lacks a value; one at step 0 before the
    first.

    A trial that ended before a perturbation takes no part in it. Where one passed a perturbation
    without a value, the others did not perturb there.
    """
    found = Generation()
    for step in range(interval, total_steps, interval):
        lacking = [trial for trial in past if trial.value_at(step) is None]
        open_ones = [trial for trial in lacking if not trial.has_ended]
        if any(trial.last_step <= step for trial in open_ones):
            return found
        if not open_ones and len(lacking) < len(past):
            found = _generation(past, step)
    return found


def _generation(past: Sequence[PastTrial], step: int) -> Generation:
    members = []
    is_open = []
    for trial in past:
        value = trial.value_at(step)
        if value is None:
            continue
        values = trial.values_before(step)
        members.append(Member(trial.number, trial.run_id, values, value))
        if not trial.has_ended and not trial.has_passed(step):
            is_open.append(trial.number)
    return Generation(step, members, frozenset(is_open))
