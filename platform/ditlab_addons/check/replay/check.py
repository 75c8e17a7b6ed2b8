"""Comparison of replayed steps with what the run's receipts say of them, or its journal where it
has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ditlab.inputs.meta_step import DTYPES
from ditlab.spec.experiment import validate_experiment
from ditlab_addons.check.prove.reference import UNITS
from ditlab_addons.check.replay.history import METRICS, Execution
from ditlab_addons.check.replay.replaying import (
    ReplayedSteps,
    ReplayPlan,
    ReplaySource,
    replay_steps,
)
from ditlab_addons.check.replay.stepper import ReplayedStep

FACTOR = 8.0
"""Bound over the distance of two orders of summation: that distance is one draw of what others may
give.
"""


@dataclass(frozen=True)
class Tolerance:
    """Relative distance up to which recorded and replayed numbers count as the same."""

    relative: float
    """0: to the bit; infinite where the replay draws other random numbers."""
    reason: str
    """Source of the bound, a phrase."""


EXACT = Tolerance(0.0, "the same kind of machine, workers and threads: to the bit")
OTHER_DRAWS = Tolerance(
    math.inf, "a CPU in place of a GPU draws other times and noise: losses are not compared"
)


def relative_distance(one: float | None, two: float | None) -> float:
    """Return the relative distance of two numbers; infinite where one is missing or not finite,
    unless both are NaN.
    """
    if one is None or two is None:
        return math.inf
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    away = abs(one - two) / max(abs(one), abs(two))
    return away if math.isfinite(away) else math.inf


@dataclass(frozen=True)
class ReplayComparison:
    """One recorded number of a step beside the replayed one."""

    step: int
    quantity: str
    """`loss`, `norm`, `lr` or `samples`."""
    source: str
    """`journal` or `receipts`."""
    recorded: float | int
    replayed: float | int | None
    """None where the replay has no such number."""
    bound: float
    """Relative; 0: to the bit."""

    @property
    def distance(self) -> float:
        """Relative distance; infinite where one of the two is not finite or missing."""
        if self.quantity == "samples":
            return 0.0 if self.recorded == self.replayed else math.inf
        return relative_distance(self.recorded, self.replayed)

    @property
    def holds(self) -> bool:
        """True if the two count as the same."""
        return self.distance <= self.bound

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison in JSON's types."""
        found = {**asdict(self), "distance": self.distance, "holds": self.holds}
        if self.quantity == "samples":
            found |= {"recorded": f"{self.recorded:016x}", "replayed": f"{self.replayed:016x}"}
        return found


@dataclass(frozen=True)
class ReplayCheck:
    """Check of steps against their records."""

    replayed: ReplayedSteps
    comparisons: tuple[ReplayComparison, ...]
    tolerance: Tolerance
    unchecked: tuple[str, ...]
    """Steps that were not compared and why, a sentence each."""

    @property
    def holds(self) -> bool:
        """True if every comparison holds, and there is one for some step that was not skipped."""
        expected = any(not step.execution.skipped for step in self.replayed.steps)
        return (bool(self.comparisons) or not expected) and all(
            each.holds for each in self.comparisons
        )


def check_replay(source: ReplaySource, first: int, last: int) -> ReplayCheck:
    """Replay steps `first` to `last`, and compare loss, norm, learning rate and samples with the
    run's record.

    Raises as `replay_steps` does.
    """
    replayed = replay_steps(source, first, last)
    if source.draws_others:
        tolerance = OTHER_DRAWS
    else:
        tolerance = _tolerance_of_sums(source, first, replayed)
    comparisons: list[ReplayComparison] = []
    unchecked = []
    for step in replayed.steps:
        if step.execution.skipped:
            unchecked.append(f"step {step.step}: its batch was skipped.")
            continue
        found = list(_compare_step(step, source.history.journaled.get(step.step), tolerance))
        comparisons += found
        if not found:
            unchecked.append(f"step {step.step}: neither journal nor receipts have it.")
    return ReplayCheck(replayed, tuple(comparisons), tolerance, tuple(unchecked))


def _compare_step(
    step: ReplayedStep, journaled: Execution | None, tolerance: Tolerance
) -> Iterator[ReplayComparison]:
    """Compare one replayed step with its receipt, or with the journal where it has none."""
    records = step.execution
    place = "receipts"
    if records.samples is not None:
        yield ReplayComparison(step.step, "samples", place, records.samples, step.digest, 0.0)
    elif journaled:
        records = journaled
        place = "journal"
    for quantity in METRICS:
        recorded = getattr(records, quantity)
        value = step.number(quantity)
        bound = tolerance.relative
        if quantity == "lr" and bound:
            bound = 2.0**-20
        if recorded is None or bound == math.inf:
            continue
        if value is not None and place == "receipts":
            value = float(np.float32(value))
        yield ReplayComparison(step.step, quantity, place, recorded, value, bound)


def _tolerance_of_sums(source: ReplaySource, first: int, replayed: ReplayedSteps) -> Tolerance:
    """Return the bound on a machine of another kind, which steps done with other orders of
    summation give.
    """
    differences = source.machine_differences(replayed.way)
    if not differences:
        return EXACT
    precision = source.run.experiment.training.precision
    last = replayed.steps[-1].step
    distances = [UNITS[DTYPES[precision]] * math.sqrt(last - source.history.first)]
    other = replay_steps(source, first, last, change=_cut_otherwise)
    for one, two in zip(replayed.steps, other.steps, strict=True):
        if one.metrics:
            distances += [
                relative_distance(one.number(name), two.number(name)) for name in ("loss", "norm")
            ]
    return Tolerance(
        FACTOR * max(filter(math.isfinite, distances)),
        f"{'; '.join(differences)}: {FACTOR:g} times the distance of two replays whose sums "
        f"are cut differently, at least {FACTOR:g} units of {precision} times the root of the "
        "steps",
    )


def _cut_otherwise(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with other orders of summation: halved micro-batches, or where they cannot
    be, other threads.
    """
    segments = []
    for segment in plan.segments:
        splits = segment.microbatch_splits + 1
        if validate_experiment(segment.spec).micro_size % 2**splits == 0:
            segments.append(replace(segment, microbatch_splits=splits))
        else:
            segments.append(replace(segment, threads=2 if segment.threads == 1 else 1))
    return replace(plan, segments=tuple(segments))
