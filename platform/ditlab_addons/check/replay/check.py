"""Comparison of replayed steps with what the run's journal and receipts say of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ditlab.spec.experiment import validate_experiment
from ditlab_addons.check.prove.reference import PRECISIONS, UNITS
from ditlab_addons.check.replay.history import Execution, StepHistory
from ditlab_addons.check.replay.replaying import ReplayedSteps, ReplayPlan, ReplaySource, replay_executions
from ditlab_addons.check.replay.stepper import ReplayedStep

FACTOR = 8.0
"""Bound over the distance of two orders of summation: that distance is one draw of what others may give."""
DEVIATIONS = 6.0
"""Standard errors between two means of a step's loss under independent draws."""


@dataclass(frozen=True)
class Tolerance:
    """Relative distance up to which recorded and replayed numbers count as the same."""

    relative: float
    """0: to the bit."""
    reason: str
    """Source of the bound, a phrase."""
    compares_norm: bool = True
    """False where no bound on the gradient's norm follows."""


EXACT = Tolerance(0.0, "the same kind of machine, workers and threads: to the bit")


def relative_distance(one: float | None, two: float | None) -> float:
    """Return the relative distance of two numbers; infinite where one is missing or not finite, unless both are NaN."""
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
    attempt: int
    """Attempt that did the step; 0 where that is not recorded."""
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
        return (bool(self.comparisons) or not expected) and all(each.holds for each in self.comparisons)


def check_replay(source: ReplaySource, first: int, last: int) -> ReplayCheck:
    """Replay steps `first` to `last`, and compare loss, norm, learning rate and samples with journal and receipts.

    A step that was done twice is replayed as the run's weights know it, and as the journal does: the first
    execution that logged it. Raises as `replay_executions` does.
    """
    targets = source.targets(first, last)
    journaled: dict[int, Execution] = {}
    for target in list(targets):
        if target.step in source.history.journaled:
            own = _journaled_execution(source.history, target)
            journaled[target.step] = own
            if own.is_recorded and own is not target:
                targets.append(own)
    replayed = replay_executions(source, targets, (last,) if source.draws_others else ())
    if source.draws_others:
        tolerance = _tolerance_of_draws(replayed)
    else:
        tolerance = _tolerance_of_sums(source, targets, replayed)
    comparisons: list[ReplayComparison] = []
    unchecked = []
    for step in replayed.steps:
        found = []
        if not step.execution.skipped:
            found = list(_compare_step(source, step, tolerance, journaled.get(step.step)))
        comparisons += found
        if not found:
            why = "its batch was skipped" if step.execution.skipped else "neither journal nor receipts have it"
            unchecked.append(f"step {step.step}: {why}.")
    return ReplayCheck(replayed, tuple(comparisons), tolerance, tuple(unchecked))


def _journaled_execution(history: StepHistory, final: Execution) -> Execution:
    """Return the execution of a step that the journal has; where none has its numbers, one without a receipt, else the
    first one: then the comparison fails. Of a step that was never recorded, the `final` one."""
    executions = history.all_of(final.step)
    same = [each for each in executions if each.logged(history.journaled[final.step])]
    unwritten = [each for each in executions if each.loss is None]
    return [*same, *unwritten, *executions, final][0]


def _compare_step(
    source: ReplaySource, step: ReplayedStep, tolerance: Tolerance, journaled: Execution | None
) -> Iterator[ReplayComparison]:
    """Compare one replayed step with its receipt, and with the journal where this is the execution that logged it."""
    own = step.execution
    if own.samples is not None:
        yield ReplayComparison(step.step, own.attempt, "samples", "receipts", own.samples, step.digest, 0.0)
    if own.is_recorded:
        yield from _compare_numbers(step, "receipts", own, tolerance)
    if journaled and (own is journaled or not journaled.is_recorded):
        yield from _compare_numbers(step, "journal", source.history.journaled[step.step], tolerance)


def _compare_numbers(
    step: ReplayedStep, place: str, records: Execution, tolerance: Tolerance
) -> Iterator[ReplayComparison]:
    """Compare loss, norm and learning rate of a replayed step with those that one place has."""
    for quantity in ("loss", "norm", "lr"):
        recorded = getattr(records, quantity)
        value = getattr(step, quantity)
        if recorded is None or (quantity == "norm" and not tolerance.compares_norm):
            continue
        if value is not None and place == "receipts":
            value = float(np.float32(value))
        bound = 2.0**-20 if quantity == "lr" and tolerance.relative else tolerance.relative
        yield ReplayComparison(step.step, step.execution.attempt, quantity, place, recorded, value, bound)


def _tolerance_of_draws(replayed: ReplayedSteps) -> Tolerance:
    """Return the bound of a loss under other times and noise, which the spread of a step's samples gives."""
    step = next((each for each in reversed(replayed.steps) if each.samples), replayed.steps[-1])
    losses = np.array([sample.loss for sample in step.samples] or [0.0])
    num = len(losses)
    deviation = float(losses.std(ddof=1)) if num > 1 else math.inf
    return Tolerance(
        DEVIATIONS * math.sqrt(2 / num) * deviation / (abs(float(losses.mean())) or 1e-30),
        f"other times and noise on this device: {DEVIATIONS:g} standard errors of two means over {num} samples, by the "
        f"spread of step {step.step}'s",
        compares_norm=False,
    )


def _tolerance_of_sums(source: ReplaySource, targets: Sequence[Execution], replayed: ReplayedSteps) -> Tolerance:
    """Return the bound on a machine of another kind, which steps done with other orders of summation give."""
    differences = source.machine_differences(replayed.way)
    if not differences:
        return EXACT
    precision = source.run.experiment.training.precision
    length = max(1, max(target.step for target in targets) - source.history.first)
    distances = [UNITS[PRECISIONS[precision]] * math.sqrt(length)]
    other = replay_executions(source, targets, (), _cut_otherwise)
    for one, two in zip(replayed.steps, other.steps, strict=True):
        if one.loss is not None:
            distances += [relative_distance(one.loss, two.loss), relative_distance(one.norm, two.norm)]
    return Tolerance(
        FACTOR * max(filter(math.isfinite, distances)),
        f"{'; '.join(differences)}: {FACTOR:g} times the distance of two replays whose sums are cut differently, at "
        f"least {FACTOR:g} units of {precision} times the root of the steps",
    )


def _cut_otherwise(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with other orders of summation: halved micro-batches, or where they cannot be, other threads."""
    segments = []
    for segment in plan.segments:
        splits = segment.microbatch_splits + 1
        if validate_experiment(segment.spec).micro_size % 2**splits == 0:
            segments.append(replace(segment, microbatch_splits=splits))
        else:
            segments.append(replace(segment, threads=2 if segment.threads == 1 else 1))
    return replace(plan, segments=tuple(segments))
