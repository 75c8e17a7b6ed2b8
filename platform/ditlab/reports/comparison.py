"""Records of a comparison: runs, samples, curves over steps, samples and seconds, which metrics are comparable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ditlab.intervals import Interval, paired_interval, student_quantile, unpaired_interval
from ditlab.receipts.records import ROUNDING, Measurement, differing_parts
from ditlab.reports.charts import running_median
from ditlab.reports.sweep_records import shared_keys
from ditlab_models.figures import Figure

HELD_OUT = "eval/"
TRAIN_LOSS = "train/loss"
CurveAxis = Literal["steps", "samples", "seconds"]
AXES: tuple[CurveAxis, ...] = ("steps", "samples", "seconds")
PAUSE_STEPS, PAUSE_SECONDS = 10, 60.0
"""An interval longer than both (this many median steps, this many seconds) is a pause, such as a sleeping machine."""
MOST_APART = 1.25
"""Largest factor between a budget and the measurements before and behind it that speak for it."""
WINDOWS = 50
"""The smoothing window is one part in this many of the curve."""


_PRINTED = (
    "run_id", "name", "family", "status", "step", "samples", "seconds", "samples_per_second", "parameters",
)  # fmt: skip
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
    evaluations: float | None
    """Network evaluations per sample; None where the sampler calls only parts of the network."""
    grid: Figure | None
    """The first samples, as the family shows them."""
    quality: Mapping[str, float] = field(default_factory=dict)
    why_no_quality: str = ""
    """Reason for the lack of quality metrics; empty where there are some."""
    measurement: Measurement | None = None
    """Measurement behind the quality; None: nothing was measured."""
    over_seeds: Mapping[str, Interval] = field(default_factory=dict)
    """Intervals over seeds of a group's quality metrics; empty for one run."""


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
    """Description of the training and held-out samples; held-out metrics are comparable only where it is equal."""
    components: Mapping[str, int]
    """Parameters by component of the network."""
    training_only: Mapping[str, int] = field(default_factory=dict)
    """Parameters of the objective's own modules."""
    curves: Mapping[str, RunCurve] = field(default_factory=dict)
    """`train/loss` and held-out metrics (`eval/...`) by name."""
    samples_per_second: float | None = None
    """Median over the training metrics."""
    drawn: RunSamples | None = None
    why_no_samples: str = ""
    """Reason for the lack of samples; empty where some were drawn, or none were requested."""
    measurement: Measurement | None = None
    """Measurement behind the held-out metrics of training; None: an earlier version wrote no tag of it."""
    past_measurements: Sequence[Measurement] = ()
    """Other measurements behind earlier points of its held-out metrics, as before a resume with another spec."""
    cost: str = ""
    """Hours of devices, and their price; empty where they were not counted."""
    by_sample: Callable[[int], Mapping[str, np.ndarray]] = lambda step: {}
    """Loss components at a step's evaluation by held-out sample, (num,) each; {} where they were not kept."""
    line: Sequence[ForkPoint] = ()
    """Checkpoints of other runs that it goes on from, its parent's first; empty for a run that is no fork."""
    draws: Mapping[str, object] = field(default_factory=dict)
    """Settings that decide the samples, times and noise of its steps (`Experiment.draws`)."""
    members: Sequence[ComparedRun] = ()
    """Runs of a group that differ in the seed alone, whose means the values are; empty for one run."""

    @property
    def measurements(self) -> Sequence[Measurement | None]:
        """Every measurement behind its held-out curves, those of a group's runs included; None: one is not recorded."""
        if self.members:
            return [each for run in self.members for each in run.measurements]
        return [*self.past_measurements, self.measurement]

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
        return None if loss is None or loss.seconds[-1] != loss.seconds[-1] else float(loss.seconds[-1])

    @property
    def held_out(self) -> dict[str, RunCurve]:
        """Held-out metrics by name, without `eval/`."""
        return {name.removeprefix(HELD_OUT): one for name, one in self.curves.items() if name.startswith(HELD_OUT)}

    def as_dict(self) -> dict[str, object]:
        """The run as `--json` prints it; `metrics` holds the last values by MLflow name and the samples' quality."""
        last = {name: float(one.values[-1]) for name, one in self.curves.items()}
        group: dict[str, object] = {}
        if self.members:
            found = {name: self.last_interval(name).to_dict() for name in self.curves}
            group = {"runs": [run.run_id for run in self.members], "intervals": found}
        return {
            **{name: getattr(self, name) for name in _PRINTED},
            "forked_from": f"{self.line[0].run_id}@{self.line[0].step}" if self.line else None,
            "metrics": last | dict(self.drawn.quality if self.drawn else {}),
            "measurements": {
                group: each.to_dict()
                for group, each in (("eval", self.measurement), ("quality", self.drawn and self.drawn.measurement))
                if each
            },
            **group,
        }  # fmt: skip

    def last_interval(self, name: str) -> Interval:
        """Interval over a group's seeds of a metric's last value; of the training loss its last smoothed one."""
        curves = [run.curves[name] for run in self.members]
        if name == TRAIN_LOSS:
            curves = [smoothed(curve) for curve in curves]
        return paired_interval([float(curve.values[-1]) for curve in curves])


def group_of(run_id: str, name: str, members: Sequence[ComparedRun]) -> ComparedRun:
    """Make one compared run of a group that differs in the seed alone: mean curves at the steps that all have.

    Samples are the first run's, their quality the mean over all. What is not a mean is that of the first run.
    """
    first = members[0]
    speeds = [run.samples_per_second for run in members if run.samples_per_second is not None]
    return replace(
        first,
        run_id=run_id,
        name=name,
        status=next((run.status for run in members if run.status != "finished"), "finished"),
        step=min(run.step for run in members),
        spec={**first.spec, "seed": ", ".join(run.spec.get("seed", "") for run in members)},
        curves={
            key: _mean_curve([run.curves[key] for run in members]) for key in shared_keys(run.curves for run in members)
        },
        samples_per_second=float(np.mean(speeds)) if speeds else None,
        drawn=_mean_quality(members),
        cost=f"{first.cost} (of the first of {len(members)} runs)" if first.cost else "",
        by_sample=lambda step: _mean_by_sample([run.by_sample(step) for run in members]),
        members=tuple(members),
    )


def _mean_quality(members: Sequence[ComparedRun]) -> RunSamples | None:
    """Samples of the first run, where all have some with the mean quality."""
    drawn = [run.drawn for run in members if run.drawn]
    if len(drawn) < len(members):
        return members[0].drawn
    names = shared_keys(each.quality for each in drawn)
    found = {name: paired_interval([each.quality[name] for each in drawn]) for name in names}
    return replace(drawn[0], quality={name: each.mean for name, each in found.items()}, over_seeds=found)


def _mean_curve(curves: Sequence[RunCurve]) -> RunCurve:
    """Mean of curves, of their seconds too, at the steps that all have."""
    steps = reduce(np.intersect1d, [curve.steps for curve in curves])
    places = [np.searchsorted(curve.steps, steps) for curve in curves]
    seconds, values = (
        np.mean([getattr(curve, name)[at] for curve, at in zip(curves, places, strict=True)], axis=0)
        for name in ("seconds", "values")
    )
    return RunCurve(steps, curves[0].samples[places[0]], seconds, values)


def _mean_by_sample(values: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Mean over runs of values by held-out sample, of the components that all have."""
    return {
        name: np.mean([each[name] for each in values], axis=0)
        for name in shared_keys(values)
        if len({each[name].shape for each in values}) == 1
    }


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, in the order of their colours."""

    runs: Sequence[ComparedRun]
    seed: int
    """Seed of every run's samples."""
    batch: int
    """Samples drawn at a time."""
    device: str
    quality_note: str = ""
    """Description of what quality metrics are measured on."""

    @cached_property
    def labels(self) -> list[str]:
        """The runs' names, with the id where two runs share a name."""
        names = [run.name for run in self.runs]
        return [run.name if names.count(run.name) == 1 else f"{run.name} ({run.run_id})" for run in self.runs]

    @cached_property
    def evaluated(self) -> list[ComparedRun]:
        """Runs with held-out metrics."""
        return [run for run in self.runs if run.held_out]

    @cached_property
    def common(self) -> list[str]:
        """Held-out metrics of all evaluated runs, the main one first; empty for fewer than two of them."""
        if len(self.evaluated) < 2:
            return []
        return sorted(shared_keys(run.held_out for run in self.evaluated), key=lambda name: name != self.main)

    @cached_property
    def main(self) -> str | None:
        """The ranking metric: the heaviest loss component that all evaluated runs share; lower is better."""
        names = self.evaluated[0].weights if len(self.evaluated) > 1 else ()
        shared = (name for name in names if all(name in run.weights and name in run.held_out for run in self.evaluated))
        return next(shared, None)

    @cached_property
    def obstacle(self) -> str:
        """Reason why held-out metrics are not comparable; empty where they are."""
        if len(self.evaluated) < 2:
            return "fewer than two of the runs have held-out metrics"
        if len({run.data for run in self.evaluated}) > 1:
            return "the runs differ in their data (other training or held-out samples)"
        if not self.common:
            return "the runs' families have no held-out metric in common"
        if self.main is None:
            return "the runs' families have no loss component in common, so no held-out metric says which is better"
        every = [each for run in self.evaluated for each in run.measurements]
        measured = [each for each in every if each]
        if other := [part for part in differing_parts(measured, self.main) if part not in ROUNDING]:
            return f"eval/{self.main} is measured in several ways, which differ in: {', '.join(other)}"
        if measured and None in every:
            return f"what eval/{self.main} is measured with is recorded of some runs alone"
        return ""

    def measured_apart(self, group: str) -> str:
        """Sentence on a name's other measurements in `group`, `eval` or `quality`; empty where there are none."""
        main = None
        if group == "eval":
            main = self.main
            known = {self.label(run): run.measurement for run in self.evaluated}
        else:
            known = {self.label(run): run.drawn.measurement for run in self.runs if run.drawn and run.drawn.quality}
        measured = [each for each in known.values() if each]
        unknown = [label for label, each in known.items() if not each]
        sentences = []
        if parts := differing_parts(measured, main):
            sentences.append(
                f"{group}/{main or '...'} is measured in several ways, which differ in: {', '.join(parts)}."
            )
        if measured and unknown:
            sentences.append(f"What {group}/... of {', '.join(unknown)} is measured with is not recorded.")
        return " ".join(sentences)

    @cached_property
    def budgets(self) -> list[EqualBudget]:
        """The main metric at equal steps, samples and time, in `evaluated`'s order; empty with an obstacle."""
        if self.obstacle or self.main is None:
            return []
        curves = [run.held_out[self.main] for run in self.evaluated]
        return [found for axis in AXES if (found := equal_budget(curves, axis))]

    def noise(self, budget: EqualBudget) -> float | None:
        """Half the 95 % interval of the difference between the two lowest at a budget, over held-out draws.

        From the differences by sample: both saw the same samples, times and noise. None where these were not kept, or
        are others.
        """
        lowest = [self.evaluated[place] for place in budget.order[:2]]
        measured = [run.measurement for run in lowest if run.measurement]
        if self.main is None or len(measured) < 2 or set(differing_parts(measured, self.main)) - ROUNDING:
            return None
        values = [found for run in lowest if (found := values_at(run, self.main, budget)) is not None]
        num = len(values[0]) if values else 0
        if len(values) < 2 or len(values[1]) != num or num < 2:
            return None
        return float(student_quantile(num - 1, 0.95) * (values[0] - values[1]).std(ddof=1) / np.sqrt(num))

    def difference(self, budget: EqualBudget) -> Interval | None:
        """Interval over seeds of the lowest minus the next at a budget; None unless both are groups measured there.

        From pairs of runs that share all draws, else between means. The error is shared over all comparisons with the
        lowest (Bonferroni).
        """
        found = [self._member_values(self.evaluated[place], budget) for place in budget.order[:2]]
        if len(found) < 2 or not all(found):
            return None
        first, second = found
        confidence = 1 - 0.05 / (len(self.evaluated) - 1)
        pairs = [a - b for one, a in first for other, b in second if one.draws == other.draws]
        if len(pairs) > 1:
            return paired_interval(pairs, confidence)
        return unpaired_interval([value for _, value in first], [value for _, value in second], confidence)

    def _member_values(self, group: ComparedRun, budget: EqualBudget) -> list[tuple[ComparedRun, float]]:
        """Main metric at a budget of the runs of a group; empty unless it has several, all of them measured there."""
        if len(group.members) < 2:
            return []
        found = []
        for run in group.members:
            curve = run.held_out.get(self.main or "")
            value = measured_at(curve, budget.axis, budget.amount) if curve else None
            if value is None or not np.isfinite(value):
                return []
            found.append((run, value))
        return found

    def why_unpaired(self) -> str:
        """Sentence on groups whose runs share no draws, and by which fields; empty where runs of one seed are pairs."""
        groups = [run for run in self.evaluated if run.members]
        parts = dict.fromkeys(
            name for run in groups for name, value in run.draws.items()
            if name != "seed" and value != groups[0].draws.get(name)
        )  # fmt: skip
        if not parts:
            return ""
        return f"Groups that differ in {', '.join(parts)} do not share draws: they are compared by means, not by pairs."

    def nearest_ancestor(self, run: ComparedRun) -> ComparedRun | None:
        """The nearest run of the comparison that a fork goes on from, directly or through others; None without one."""
        by_id = {each.run_id: each for each in self.runs if each is not run}
        return next((by_id[point.run_id] for point in run.line if point.run_id in by_id), None)

    def label(self, run: ComparedRun) -> str:
        """The run's entry of `labels`."""
        return next(label for label, one in zip(self.labels, self.runs, strict=True) if one.run_id == run.run_id)


TrainingClock = Callable[[np.ndarray], np.ndarray]
"""Seconds of training at steps, linear between those that are known; NaN where the time is unknown."""


def training_clock(
    steps: ArrayLike, times: ArrayLike, starts: Sequence[int] = (), evaluated: ArrayLike = ()
) -> TrainingClock:
    """Compute seconds of training from the `times` (milliseconds) at which metrics of `steps` (ascending) were logged.

    `starts` are the times at which the run was started and resumed, `evaluated` the steps after which it was evaluated.
    An interval between two steps counts as measured, unless it holds a resume or an evaluation, is a pause, or the
    machine's clock went back: then it counts as the median step since the last start. So does the unknown time before
    the first point.
    """
    at = np.asarray(steps, dtype=float)
    stamps = np.asarray(times, dtype=float) / 1000
    if len(at) < 2:
        return lambda wanted: np.full(np.shape(wanted), np.nan)
    strides = np.diff(at)
    intervals = np.diff(stamps)
    session = np.searchsorted(np.sort(np.asarray(starts, dtype=float)) / 1000, stamps, side="right")
    marks = np.sort(np.asarray(evaluated, dtype=float))
    is_whole = np.diff(session) == 0
    is_clean = is_whole & (np.diff(np.searchsorted(marks, at, side="left")) == 0) & (intervals >= 0)
    paces = intervals / strides  # seconds a step
    usual = np.empty(len(at))  # the median of the session; of the run, or of all intervals, where it has no clean ones
    for own in np.unique(session):
        masks = (is_clean & (session[1:] == own), is_clean, is_whole, np.ones_like(is_clean))
        usual[session == own] = max(0.0, float(np.median(paces[next(mask for mask in masks if mask.any())])))
    is_measured = is_clean & ((paces <= PAUSE_STEPS * usual[1:]) | (intervals <= PAUSE_SECONDS))
    spent = np.where(is_measured, intervals, usual[1:] * strides)
    seconds = np.cumsum(np.concatenate([[0.0, usual[0] * at[0]], spent]))
    known = np.insert(at, 0, 0.0)
    return lambda wanted: np.interp(wanted, known, seconds)


@dataclass(frozen=True)
class RunCurve:
    """One metric of one run, (num,) each."""

    steps: np.ndarray
    samples: np.ndarray
    seconds: np.ndarray
    """Seconds of training; NaN where the journal does not hold it."""
    values: np.ndarray

    def along(self, axis: CurveAxis) -> np.ndarray:
        """Its places on an axis."""
        places: np.ndarray = getattr(self, axis)
        return places


def run_curve(steps: ArrayLike, values: ArrayLike, batch_size: int, clock: TrainingClock) -> RunCurve:
    """Place a metric's points on all three axes; of two points for one step the first one counts."""
    at, first = np.unique(np.asarray(steps, dtype=float), return_index=True)
    return RunCurve(at, at * batch_size, clock(at), np.asarray(values, dtype=float)[first])


def smoothed(curve: RunCurve) -> RunCurve:
    """Smooth with a centred running median over a fiftieth of the points, at no more than 500 of them."""
    at, medians = running_median(curve.values, max(1, len(curve.values) // WINDOWS))
    return RunCurve(curve.steps[at], curve.samples[at], curve.seconds[at], medians)


@dataclass(frozen=True)
class EqualBudget:
    """A metric of several runs at the same number of steps, samples or seconds."""

    axis: CurveAxis
    amount: float
    """The largest budget at which all runs are measured, else the largest that all reach."""
    values: tuple[float, ...]
    """One a run, in their order; NaN where evaluations beside it were not finite, or it is not measured there."""
    every: int = 0
    """Most steps between evaluations (`evaluation.every`) by which all runs would be measured there; 0: they are."""

    @property
    def order(self) -> list[int]:
        """Places of the runs with a finite value, the lowest first."""
        return [int(place) for place in np.argsort(self.values) if np.isfinite(self.values[place])]


def _place(curve: RunCurve, axis: CurveAxis, amount: float) -> tuple[np.ndarray, int, bool]:
    """Places of a curve's points, the number of the first one at a budget or behind it, and whether it is there."""
    reach = curve.along(axis)
    behind = int(np.searchsorted(reach, amount * (1 - 1e-9)))
    return reach, behind, behind < len(reach) and reach[behind] <= amount * (1 + 1e-9)


def values_at(run: ComparedRun, name: str, budget: EqualBudget) -> np.ndarray | None:
    """Return a held-out metric at a budget by held-out sample; between two evaluations as `measured_at` weighs them."""
    curve = run.held_out[name]
    reach, behind, is_met = _place(curve, budget.axis, budget.amount)
    if is_met:
        return run.by_sample(int(curve.steps[behind])).get(name)
    before, after = (run.by_sample(int(curve.steps[place])).get(name) for place in (behind - 1, behind))
    if before is None or after is None or before.shape != after.shape:
        return None
    share = np.log(budget.amount / reach[behind - 1]) / np.log(reach[behind] / reach[behind - 1])
    return (1 - share) * before + share * after


def measured_at(curve: RunCurve, axis: CurveAxis, amount: float) -> float | None:
    """Return a metric at a budget; None where it has no point within a factor of MOST_APART before and behind it.

    Between two points it is interpolated on logarithmic axes.
    """
    reach, behind, is_met = _place(curve, axis, amount)
    if is_met:
        return float(curve.values[behind])
    if not 0 < behind < len(reach):
        return None
    start, stop = reach[behind - 1 : behind + 1]
    values = curve.values[behind - 1 : behind + 1]
    if start * MOST_APART < amount or amount * MOST_APART < stop:
        return None
    if not (values > 0).all():  # not finite, or of either sign
        return float(np.interp(np.log(amount), np.log([start, stop]), values))
    return float(np.exp(np.interp(np.log(amount), np.log([start, stop]), np.log(values))))


def equal_budget(curves: Sequence[RunCurve], axis: CurveAxis) -> EqualBudget | None:
    """Compare a metric at the largest `axis` value at which all `curves` are measured; None where none is known."""
    reaches = [curve.along(axis) for curve in curves]
    if any(not len(reach) or np.isnan(reach).any() for reach in reaches):
        return None
    largest = min(float(reach[-1]) for reach in reaches)
    common = np.unique(np.concatenate(reaches))
    for amount in common[(common > 0) & (common <= largest)][::-1].tolist():
        values = [measured_at(curve, axis, amount) for curve in curves]
        if None not in values:
            return EqualBudget(axis, amount, tuple(map(float, values)))  # type: ignore[arg-type]
    if largest <= 0:
        return None
    at = min(float(np.interp(largest, reach, curve.steps)) for reach, curve in zip(reaches, curves, strict=True))
    return EqualBudget(axis, largest, (np.nan,) * len(curves), max(1, int(at - at / MOST_APART + 1e-6)))
