"""Records of a comparison: runs, samples, curves over steps and seconds, which metrics are
comparable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Literal

import numpy as np

from ditlab.intervals import Interval, far_values, paired_interval, simultaneous_differences
from ditlab.receipts.records import ROUNDING, Measurement, differing_parts
from ditlab.reports.charts import running_median
from ditlab.reports.sweep_records import shared_keys
from ditlab.tracking.journal import TRAIN_LOSS
from ditlab_models.figures import Figure

HELD_OUT = "eval/"
MEASURED = (HELD_OUT, "held_out/", "assessed/", "quality/")
"""Prefixes of the metrics that are compared beside the training loss."""
CurveAxis = Literal["steps", "seconds"]
AXES: tuple[CurveAxis, ...] = ("steps", "seconds")
WINDOWS = 50
"""The smoothing window is one part in this many of the curve."""


_PRINTED = (
    "run_id",
    "name",
    "family",
    "status",
    "step",
    "samples",
    "seconds",
    "samples_per_second",
    "parameters",
)
"""Values of a run that `--json` has under their own names."""


@dataclass(frozen=True)
class RunSamples:
    """Samples that were drawn from a run's weights."""

    step: int
    """Training step of the weights."""
    settings: str
    """The sampling settings: `solver=heun, steps=25`."""
    num: int
    seconds: float
    """Per sample."""
    grid: Figure
    """The samples, as the family shows them."""


@dataclass(frozen=True)
class ForkPoint:
    """Checkpoint of a run, from which another goes on."""

    run_id: str
    step: int


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    run_id: str
    name: str
    family: str
    status: str
    step: int
    """The last known training step."""
    batch_size: int
    spec: Mapping[str, str]
    """The resolved spec by dotted path."""
    weights: Sequence[str]
    """Components of the loss, the heaviest first."""
    data: str
    """Description of the training and held-out samples; held-out metrics are comparable only where
    it is equal.
    """
    components: Mapping[str, int]
    """Parameters by component of the network."""
    curves: Mapping[str, RunCurve]
    """`train/loss` and metrics of `MEASURED` by name."""
    samples_per_second: float | None
    """Median over the training metrics."""
    measured: Mapping[str, Measurement]
    """Measurement behind the latest metrics of a group, `eval` or `quality`, where it is
    recorded.
    """
    cost: str
    """Hours of devices, and their price; empty where they were not counted."""
    by_sample: Callable[[int], Mapping[str, np.ndarray]]
    """Loss components at a step's evaluation by held-out sample, (num,) each; {} where they were
    not kept.
    """
    line: Sequence[ForkPoint]
    """Checkpoints of other runs that it goes on from, its parent's first; empty for a run that is
    no fork.
    """
    draws: Mapping[str, object]
    """Settings that decide the samples, times and noise of its steps (`Experiment.draws`)."""
    drawn: RunSamples | None = None
    why_no_samples: str = ""
    """Reason for the lack of samples; empty where some were drawn, or none were requested."""
    members: Sequence[ComparedRun] = ()
    """Runs of a group that differ in the seed alone, whose means the values are; empty for one
    run.
    """

    def measurements(self, group: str) -> list[Measurement | None]:
        """The measurement behind a group of metrics, or those of a group's runs; None: one is not
        recorded.
        """
        return [run.measured.get(group) for run in self.members or [self]]

    @property
    def parameters(self) -> int:
        """Number of the network's parameters."""
        return sum(self.components.values())

    @property
    def samples(self) -> int:
        """Number of training samples seen."""
        return self.step * self.batch_size

    @property
    def seconds(self) -> float | None:
        """Training time up to the last training metric; None where the journal does not hold it."""
        loss = self.curves.get(TRAIN_LOSS)
        if loss is None or loss.seconds[-1] != loss.seconds[-1]:
            return None
        return float(loss.seconds[-1])

    @property
    def held_out(self) -> dict[str, RunCurve]:
        """Held-out metrics by name, without `eval/`."""
        return {
            name.removeprefix(HELD_OUT): one
            for name, one in self.curves.items()
            if name.startswith(HELD_OUT)
        }

    def as_dict(self) -> dict[str, object]:
        """The run as `--json` prints it; `metrics` holds the last values by MLflow name."""
        facts: dict[str, object] = {name: getattr(self, name) for name in _PRINTED}
        facts["forked_from"] = f"{self.line[0].run_id}@{self.line[0].step}" if self.line else None
        facts["metrics"] = {name: float(one.values[-1]) for name, one in self.curves.items()}
        facts["measurements"] = {name: each.to_dict() for name, each in self.measured.items()}
        if self.members:
            facts["runs"] = [run.run_id for run in self.members]
            facts["intervals"] = {name: self.last_interval(name).to_dict() for name in self.curves}
        return facts

    def last_interval(self, name: str) -> Interval:
        """Interval over a group's seeds of a metric's last value; of the training loss its last
        smoothed one.
        """
        curves = [run.curves[name] for run in self.members]
        if name == TRAIN_LOSS:
            curves = [smoothed(curve) for curve in curves]
        return paired_interval([float(curve.values[-1]) for curve in curves])


def group_of(run_id: str, name: str, members: Sequence[ComparedRun]) -> ComparedRun:
    """Make one compared run of a group that differs in the seed alone: mean curves at the steps
    that all have.

    What is not a mean is that of the first run, samples too.
    """
    first = members[0]
    speeds = [run.samples_per_second for run in members if run.samples_per_second is not None]
    means = {
        name: _mean_curve([run.curves[name] for run in members])
        for name in shared_keys(r.curves for r in members)
    }
    return replace(
        first,
        run_id=run_id,
        name=name,
        status=next((run.status for run in members if run.status != "finished"), "finished"),
        step=min(run.step for run in members),
        spec={**first.spec, "seed": ", ".join(run.spec.get("seed", "") for run in members)},
        curves={name: curve for name, curve in means.items() if len(curve.steps)},
        samples_per_second=float(np.mean(speeds)) if speeds else None,
        cost="",
        by_sample=lambda step: {},
        members=tuple(members),
    )


def _mean_curve(curves: Sequence[RunCurve]) -> RunCurve:
    """Mean of curves, of their seconds too, at the steps that all have."""
    steps = reduce(np.intersect1d, [curve.steps for curve in curves])
    places = [np.searchsorted(curve.steps, steps) for curve in curves]
    seconds = [curve.seconds[at] for curve, at in zip(curves, places, strict=True)]
    values = [curve.values[at] for curve, at in zip(curves, places, strict=True)]
    return RunCurve(steps, np.mean(seconds, axis=0), np.mean(values, axis=0))


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, in the order of their colours."""

    runs: Sequence[ComparedRun]
    seed: int
    """Seed of every run's samples."""

    @cached_property
    def labels(self) -> list[str]:
        """Labels of the runs, in their order."""
        return [self.label(run) for run in self.runs]

    def label(self, run: ComparedRun) -> str:
        """Return a run's name, with its id where two runs share a name."""
        is_shared = sum(one.name == run.name for one in self.runs) > 1
        if is_shared:
            return f"{run.name} ({run.run_id})"
        return run.name

    @cached_property
    def evaluated(self) -> list[ComparedRun]:
        """Runs with held-out metrics."""
        return [run for run in self.runs if run.held_out]

    @cached_property
    def common(self) -> list[str]:
        """Held-out metrics of all evaluated runs, the main one first; empty for fewer than two of
        them.
        """
        if len(self.evaluated) < 2:
            return []
        return sorted(
            shared_keys(run.held_out for run in self.evaluated), key=lambda name: name != self.main
        )

    @cached_property
    def main(self) -> str:
        """The ranking metric: the heaviest loss component that all evaluated runs share; lower is
        better. Empty without one."""
        names = self.evaluated[0].weights if len(self.evaluated) > 1 else ()
        shared = (
            name
            for name in names
            if all(name in run.weights and name in run.held_out for run in self.evaluated)
        )
        return next(shared, "")

    @cached_property
    def obstacle(self) -> str:
        """Reason why held-out metrics are not comparable; empty where they are."""
        if len(self.evaluated) < 2:
            return "fewer than two of the runs have held-out metrics"
        if len({run.data for run in self.evaluated}) > 1:
            return "the runs differ in their data (other training or held-out samples)"
        if not self.common:
            return "the runs' families have no held-out metric in common"
        if not self.main:
            return (
                "the runs' families have no loss component in common, so no held-out metric "
                "says which is better"
            )
        every = [each for run in self.evaluated for each in run.measurements("eval")]
        measured = [each for each in every if each]
        other = [part for part in differing_parts(measured, self.main) if part not in ROUNDING]
        if other:
            return (
                f"eval/{self.main} is measured in several ways, which differ in: {', '.join(other)}"
            )
        if measured and None in every:
            return f"what eval/{self.main} is measured with is recorded of some runs alone"
        return ""

    def measured_apart(self, group: str) -> str:
        """Sentence on other measurements of a name in `group`, `eval` or `quality`; empty where
        there are none.
        """
        main = self.main if group == "eval" else ""
        known = [each for run in self.runs for each in run.measurements(group)]
        parts = differing_parts([each for each in known if each], main or None)
        if not parts:
            return ""
        return (
            f"{group}/{main or '...'} is measured in several ways, which differ in: "
            f"{', '.join(parts)}."
        )

    @cached_property
    def budgets(self) -> list[EqualBudget]:
        """The main metric at equal steps and equal time, in `evaluated`'s order; empty with an
        obstacle.
        """
        if self.obstacle:
            return []
        curves = [run.held_out[self.main] for run in self.evaluated]
        return [found for axis in AXES if (found := equal_budget(curves, axis))]

    def over_draws(self, budget: EqualBudget) -> Interval | None:
        """Interval over held-out draws of the lowest minus the next at a budget.

        From the differences by sample: both saw the same samples, times and noise. None where these
        were not kept, or what they are measured with is not recorded, and for groups.
        """
        lowest = [self.evaluated[place] for place in budget.order[:2]]
        known = [run for run in lowest if run.measured.get("eval")]
        values = [
            found for run in known if (found := values_at(run, self.main, budget)) is not None
        ]
        if len(values) < 2 or len(values[0]) != len(values[1]) or len(values[0]) < 2:
            return None
        differences = values[0] - values[1]
        if np.isfinite(differences).all():
            return paired_interval(differences.tolist())
        return None

    def error(self, budget: EqualBudget) -> Interval | None:
        """Interval of the lowest minus the next: of groups over seeds, else over held-out draws;
        None: not known.
        """
        return self.difference(budget) or self.over_draws(budget)

    def difference(self, budget: EqualBudget) -> Interval | None:
        """Interval over seeds of the lowest minus the next at a budget; None unless both are groups
        measured there.

        From pairs of runs that share all draws, else between means. It holds together with those of
        all pairs of groups (`simultaneous_differences`), as the values chose the lowest.
        """
        groups = self._groups(budget)
        if groups is None:
            return None
        found = simultaneous_differences(groups)[0]  # the next minus the lowest
        return replace(found, mean=-found.mean, low=-found.high, high=-found.low)

    def far_pairs(self, budget: EqualBudget) -> list[str]:
        """Seeds of pairs of the lowest and the next at a budget that are far from the others."""
        groups = self._groups(budget)
        if groups is None:
            return []
        first, second, *_ = groups
        shared = [draws for draws in first if draws in second]
        far = far_values([first[draws] - second[draws] for draws in shared])
        return [str(json.loads(shared[place]).get("seed")) for place in far]

    def _groups(self, budget: EqualBudget) -> list[dict[str, float]] | None:
        """Value of each run by its draws, of the groups measured at a budget in its order; None
        unless the two lowest are such.
        """
        found = [self._member_values(self.evaluated[place], budget) for place in budget.order]
        if len(found) < 2 or not all(found[:2]):
            return None
        return [
            {json.dumps(run.draws, sort_keys=True, default=str): value for run, value in group}
            for group in found
            if group
        ]

    def _member_values(
        self, group: ComparedRun, budget: EqualBudget
    ) -> list[tuple[ComparedRun, float]]:
        """Main metric at a budget of the runs of a group; empty unless it has several, all of them
        measured there.
        """
        curves = [run.held_out[self.main] for run in group.members]
        values = [value_at(curve, budget.axis, budget.amount) for curve in curves]
        if len(values) < 2 or not np.isfinite(values).all():
            return []
        return list(zip(group.members, values, strict=True))


@dataclass(frozen=True)
class RunCurve:
    """One metric of one run, (num,) each."""

    steps: np.ndarray
    seconds: np.ndarray
    """Seconds of training; NaN where the journal does not hold it."""
    values: np.ndarray

    def along(self, axis: CurveAxis) -> np.ndarray:
        """Its places on an axis."""
        return self.steps if axis == "steps" else self.seconds


def training_seconds(
    wanted: np.ndarray, steps: np.ndarray, speeds: np.ndarray, batch_size: int
) -> np.ndarray:
    """Compute seconds of training up to the `wanted` steps, without evaluations, saves and pauses.

    `speeds` are samples a second at `steps` (ascending), each that of the steps since the one
    before. NaN where no speed is known.
    """
    if not len(steps):
        return np.full(np.shape(wanted), np.nan)
    spent = np.diff(steps, prepend=0) * batch_size / speeds
    return np.interp(wanted, np.append(0, steps), np.append(0, np.cumsum(spent)))


def smoothed(curve: RunCurve) -> RunCurve:
    """Smooth with a centred running median over a fiftieth of the points, at no more than 500 of
    them.
    """
    at, medians = running_median(curve.values, max(1, len(curve.values) // WINDOWS))
    return RunCurve(curve.steps[at], curve.seconds[at], medians)


@dataclass(frozen=True)
class EqualBudget:
    """A metric of several runs at the same number of steps or seconds."""

    axis: CurveAxis
    amount: float
    """The largest budget that all runs reach."""
    values: Sequence[float]
    """One a run, in their order; NaN where it has none."""

    @property
    def order(self) -> list[int]:
        """Places of the runs with a finite value, the lowest first."""
        return [int(place) for place in np.argsort(self.values) if np.isfinite(self.values[place])]


def value_at(curve: RunCurve, axis: CurveAxis, amount: float) -> float:
    """Return a metric at a budget, linear between two evaluations; NaN before the first one of a
    trained network.
    """
    is_trained = curve.steps > 0
    if not is_trained.any():
        return float("nan")
    return float(
        np.interp(amount, curve.along(axis)[is_trained], curve.values[is_trained], left=np.nan)
    )


def values_at(run: ComparedRun, name: str, budget: EqualBudget) -> np.ndarray | None:
    """Return a held-out metric at a budget by held-out sample, between two evaluations as
    `value_at`.
    """
    curve = run.held_out[name]
    reach = curve.along(budget.axis)
    behind = int(np.searchsorted(reach, budget.amount))
    after = run.by_sample(int(curve.steps[behind])).get(name)
    if reach[behind] == budget.amount:
        return after
    before = run.by_sample(int(curve.steps[behind - 1])).get(name)
    if before is None or after is None or before.shape != after.shape:
        return None
    share = (budget.amount - reach[behind - 1]) / (reach[behind] - reach[behind - 1])
    return before + share * (after - before)


def equal_budget(curves: Sequence[RunCurve], axis: CurveAxis) -> EqualBudget | None:
    """Compare a metric at the largest `axis` value that all `curves` reach; None where that is 0,
    or not known.
    """
    amount = min(float(curve.along(axis)[-1]) for curve in curves)
    if not amount > 0 or any(np.isnan(curve.along(axis)).any() for curve in curves):
        return None
    return EqualBudget(axis, amount, [value_at(curve, axis, amount) for curve in curves])
