"""Records that a sweep's report is made of, and the ranking of its trials by fronts. Imports
nothing heavy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal

from ditlab.reports.formatting import listed

Status = Literal["finished", "stopped", "failed", "interrupted", "running", "waiting"]
"""Status of a trial: the scheduler `stopped` it; a person or the machine `interrupted` it."""

ENDED: tuple[Status, ...] = ("finished", "stopped", "failed")
"""Statuses of trials that are not run again."""
_ORDER = {"finished": 0, "stopped": 1, "interrupted": 2, "running": 3}
"""Order of trials with a value, by how final their value is."""
_WITHOUT_VALUES = ["running", "interrupted", "waiting", "finished", "stopped", "failed"]
"""Statuses of a configuration whose runs have no value, the one that it has first."""
_WITHOUT_A_VALUE = 4
_SPEEDS = ("time/", "perf/")
"""Beginnings of metrics that are measured over a whole trial, at no step."""
_GROUPS = {"failed": 5, "waiting": 6}


@dataclass(frozen=True)
class MetricCurve:
    """A metric over steps."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep; of several seeds, one configuration under one of them."""

    number: int
    run_id: str
    values: Mapping[str, Any]
    """Value by axis path; an axis whose condition does not hold is absent."""
    status: str = "waiting"
    """A `Status`."""
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    """Training time."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Last value of each metric."""
    curves: Mapping[str, MetricCurve] = field(default_factory=dict)
    """Curves of the sweep's metrics and of `train/loss`."""
    note: str = ""
    """A failure's class and message; in population-based training, the trial's takeovers."""
    device_hours: Mapping[str, float] = field(default_factory=dict)
    """Hours of devices, those of several added, by kind: `GPU`, `core`."""
    measured: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Digests of what the sweep's metrics are measured with, by group and part (`eval`, `held-out
    samples`).
    """
    configuration: int = -1
    """Number of its values among those of the sweep; the trial's own where there is one seed."""
    seed: int | None = None
    """Seed of its experiment; None: the one that the experiment has."""
    members: Sequence[Trial] = ()
    """Runs of a configuration, by seed; empty for a run."""
    by_seed: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Last value of each metric by seed: of the runs that a configuration's means are taken over;
    empty for a run.
    """

    def __post_init__(self) -> None:
        if self.configuration < 0:
            object.__setattr__(self, "configuration", self.number)

    def to_dict(self) -> dict[str, Any]:
        """The trial as the ledger and Ray Tune have it: number, run id, values, and of several
        seeds configuration and seed.
        """
        plain = {"number": self.number, "run_id": self.run_id, "values": dict(self.values)}
        if self.seed is None:
            return plain
        return {**plain, "configuration": self.configuration, "seed": self.seed}

    @property
    def has_ended(self) -> bool:
        """True if the trial is not run again."""
        return self.status in ENDED

    @property
    def num_seeds(self) -> int:
        """Seeds that its values are of."""
        return len(self.by_seed) or 1


def configuration_of(members: Sequence[Trial], metrics: Sequence[str]) -> Trial:
    """Make a configuration of its runs under all seeds: each metric's mean, and the mean curves.

    The means are over the runs with a finite value of every one of `metrics`, and of these over the
    finished ones, or else those that are furthest in the order finished, stopped, interrupted,
    running. The configuration's status and step are theirs; its run id is that of the first of
    them.
    """
    members = sorted(members, key=lambda trial: (trial.seed or 0, trial.number))
    chosen = _furthest(members, metrics)
    first = chosen[0]
    means: dict[str, float] = {}
    by_seed: dict[int, Mapping[str, float]] = {}
    if _has_values(first, metrics):
        names = shared_keys(trial.metrics for trial in chosen)
        means = {name: fmean(trial.metrics[name] for trial in chosen) for name in names}
        by_seed = {trial.seed or 0: trial.metrics for trial in chosen}
    return replace(
        first,
        number=first.configuration,
        step=min(trial.step for trial in chosen),
        total_steps=max(trial.total_steps for trial in members),
        seconds=sum(trial.seconds for trial in members),
        metrics=means,
        curves={
            name: _mean_curve([trial.curves[name] for trial in chosen])
            for name in shared_keys(trial.curves for trial in chosen)
        },
        device_hours=device_hours(members),
        members=tuple(members),
        by_seed=by_seed,
    )


def _furthest(members: Sequence[Trial], metrics: Sequence[str]) -> Sequence[Trial]:
    """Runs of one status that a configuration's values are of: of those with values the furthest,
    else what goes on first.
    """
    usable = [trial for trial in members if _has_values(trial, metrics)]
    order = list(_ORDER) if usable else _WITHOUT_VALUES
    found = usable or members
    status = min((trial.status for trial in found), key=order.index)
    return [trial for trial in found if trial.status == status]


def shared_keys(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys that all mappings have, in the order of the first one's."""
    first, *others = mappings
    return [key for key in first if all(key in other for other in others)]


def device_hours(trials: Iterable[Trial]) -> Counter[str]:
    """Add up the hours of devices by kind, without kinds of no hours."""
    return sum((Counter(trial.device_hours) for trial in trials), Counter[str]())


def configurations_of(trials: Sequence[Trial], metrics: Sequence[str]) -> list[Trial]:
    """Make the configurations of the runs of a sweep with several seeds, by number."""
    number = attrgetter("configuration")
    return [
        configuration_of([*members], metrics)
        for _, members in groupby(sorted(trials, key=number), number)
    ]


def _has_values(trial: Trial, metrics: Sequence[str]) -> bool:
    return trial.status in _ORDER and all(
        math.isfinite(trial.metrics.get(name, math.nan)) for name in metrics
    )


def _mean_curve(curves: Sequence[MetricCurve]) -> MetricCurve:
    """Mean of curves at the steps that all of them have."""
    found = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    steps = [step for step in found[0] if all(step in each for each in found)]
    return MetricCurve(steps, [fmean(each[step] for each in found) for step in steps])


@dataclass(frozen=True)
class AxisInfo:
    """One axis of the search space."""

    path: str
    scale: Literal["linear", "log", "category"]


@dataclass(frozen=True)
class SweepSummary:
    """State of a sweep, finished or not: its trials and settings."""

    sweep_id: str
    name: str
    metrics: tuple[str, ...]
    modes: tuple[Literal["min", "max"], ...]
    """One mode for each of `metrics`."""
    axes: Sequence[AxisInfo]
    trials: Sequence[Trial]
    """Its trials; with several seeds its configurations (`configuration_of`), each with means over
    seeds.
    """
    search: str
    scheduler: str
    seconds: float
    total_trials: int
    """Runs of the whole sweep."""
    base: str
    num_seeds: int = 1
    unshared: Sequence[str] = ()
    """Axes along which trials of one seed train on other samples, times or noise."""
    verdict: Sequence[str] = ()
    """Sentences of a scheduler that chose the trials: what is behind, what is left, how it
    ended.
    """

    def __post_init__(self) -> None:
        assert self.metrics and len(self.metrics) == len(self.modes), (
            "a mode for each metric, and at least one"
        )

    @property
    def runs(self) -> list[Trial]:
        """Every run, by number."""
        runs: list[Trial] = []
        for trial in self.trials:
            runs += trial.members or [trial]
        return sorted(runs, key=lambda run: run.number)

    @property
    def goals(self) -> list[str]:
        """Each metric with the direction in which it is better: `eval/velocity (lower is
        better)`.
        """
        return [
            f"{name} ({better(mode)})" for name, mode in zip(self.metrics, self.modes, strict=True)
        ]

    @property
    def unit(self) -> str:
        """Word for one of `trials`: `trial`; with several seeds `configuration`."""
        return "configuration" if self.num_seeds > 1 else "trial"


def better(mode: str) -> str:
    """Describe the mode: `lower is better`."""
    if mode == "min":
        return "lower is better"
    return "higher is better"


def objectives(summary: SweepSummary, trial: Trial) -> tuple[float, ...] | None:
    """Return the last value of each of the sweep's metrics; None unless all are finite and the
    trial did not fail.
    """
    if not _has_values(trial, summary.metrics):
        return None
    return tuple(trial.metrics[name] for name in summary.metrics)


def value_step(summary: SweepSummary, trial: Trial) -> int:
    """Return the step at which the last value of the first metric was measured; of a trial without
    one, and of a speed, the last step of the trial.
    """
    name = summary.metrics[0]
    curve = trial.curves.get(name)
    if curve is None or not curve.steps or name.startswith(_SPEEDS):
        return trial.step
    return curve.steps[-1]


def steps_sentence(summary: SweepSummary) -> str:
    """Say at which steps the values are by which the best trial is the first of its status, where
    these differ, and which trial is the best at the last step that all of them have.

    Empty where all values are of one step, and where there is no best trial.
    """
    first = best(summary)
    name = summary.metrics[0]
    if first is None or name.startswith(_SPEEDS):
        return ""
    peers = [trial for trial in comparable(summary)[0] if trial.status == first.status]
    step = value_step(summary, first)
    other = next((trial for trial in peers if value_step(summary, trial) != step), None)
    if other is None:
        return ""
    unit = summary.unit
    found = (
        f"Values are of different steps: {unit} {first.number} has {first.metrics[name]:.4g} at "
        f"step {step:,}, {unit} {other.number} has {other.metrics[name]:.4g} at step "
        f"{value_step(summary, other):,}."
    )
    return f"{found} {_at_common_step(summary, peers)}"


def _at_common_step(summary: SweepSummary, trials: Sequence[Trial]) -> str:
    """Say which trials are the best at the last step at which all have a value."""
    name = summary.metrics[0]
    values = [_values_by_step(trial, name) for trial in trials]
    common = set.intersection(*(set(each) for each in values)) - {0}
    if not common:
        return f"There is no step at which all {len(trials)} have a value."
    last = max(common)
    sign = -1 if summary.modes[0] == "max" else 1
    losses = {trial.number: sign * each[last] for trial, each in zip(trials, values, strict=True)}
    least = min(losses.values())
    leaders = [number for number, loss in losses.items() if loss == least]
    verdict = f"{summary.unit} {leaders[0]} is the best"
    if len(leaders) > 1:
        verdict = f"{summary.unit}s {listed(leaders, 8)} are equally good"
    return (
        f"At step {last:,}, the last at which all {len(trials)} have a value, {verdict} with "
        f"{sign * least:.4g}."
    )


def _values_by_step(trial: Trial, name: str) -> dict[int, float]:
    """Finite values of a metric by step."""
    curve = trial.curves.get(name, MetricCurve([], []))
    points = zip(curve.steps, curve.values, strict=True)
    return {step: value for step, value in points if math.isfinite(value)}


def rank(summary: SweepSummary) -> list[Trial]:
    """Sort all trials, best first.

    Trials whose metrics are measured with other data or objectives are apart, each group in that of
    its first trial. Finished trials come first, then stopped, interrupted and running ones; then
    trials of any of these statuses without a finite value of some metric, then failed ones, then
    waiting ones. Of configurations of equal status those with values of more seeds come first.
    Trials of equal status are sorted by the first metric's last value in its mode. With several
    metrics they are sorted by front first (non-dominated sorting: Deb et al. 2002, "A fast and
    elitist multiobjective genetic algorithm: NSGA-II", section III.A), and by the first metric
    within a front. Ties go to the lower number.
    """
    groups: dict[tuple[int, int, int], list[tuple[tuple[float, ...], Trial]]] = {}
    ways = _ways(summary)
    for trial in sorted(summary.trials, key=lambda trial: trial.number):
        losses = _losses(summary, trial)
        if losses:
            way = ways.index(trial.measured)
            group = _ORDER[trial.status]
        else:
            way = len(ways)
            group = _GROUPS.get(trial.status, _WITHOUT_A_VALUE)
        groups.setdefault((way, group, -trial.num_seeds), []).append((losses or (), trial))
    ranked: list[Trial] = []
    for _, members in sorted(groups.items()):
        fronts = _fronts([losses for losses, _ in members])
        order = sorted(
            zip(fronts, members, strict=True), key=lambda each: (each[0], each[1][0][:1])
        )
        ranked += [trial for _, (_, trial) in order]
    return ranked


def pareto(summary: SweepSummary) -> list[Trial]:
    """Return the finished trials that no finished trial dominates, in the order of `rank`.

    With one metric: the best finished trial alone. Empty where none finished with a finite value of
    every metric, and where trials are not comparable. Without configurations that have values of
    fewer seeds than others.
    """
    groups = comparable(summary)
    if len(groups) != 1:
        return []
    done = [trial for trial in groups[0] if trial.status == "finished"]
    done = [trial for trial in done if trial.num_seeds == done[0].num_seeds]
    fronts = _fronts([_losses(summary, trial) or () for trial in done])
    front = [trial for trial, number in zip(done, fronts, strict=True) if number == 0]
    return front[:1] if len(summary.metrics) == 1 else front


def best(summary: SweepSummary) -> Trial | None:
    """Return the first of `rank`, even unfinished, if it has a finite value of every metric, else
    None.

    None too where trials are not comparable, of which `comparable` has the best by group.
    """
    groups = comparable(summary)
    return groups[0][0] if len(groups) == 1 else None


def comparable(summary: SweepSummary) -> list[list[Trial]]:
    """Return the trials with a value in groups whose metrics are measured alike, each in the order
    of `rank`.
    """
    ranked = [trial for trial in rank(summary) if objectives(summary, trial)]
    return [[trial for trial in ranked if trial.measured == way] for way in _ways(summary)]


def why_incomparable(summary: SweepSummary) -> str:
    """Return a sentence on the parts in which trials' metrics are measured otherwise; empty where
    they compare.
    """
    ways = _ways(summary)
    if len(ways) < 2:
        return ""
    parts: dict[str, None] = {}
    for key in sorted(set().union(*ways)):
        if len({way.get(key) for way in ways}) > 1:
            _, part = key
            parts[part] = None
    return (
        f"No {summary.unit} is the best of all: {' and '.join(summary.metrics)} is measured in "
        f"{len(ways)} ways, which differ in: {', '.join(parts)}. Trials are ranked among those "
        "that are measured alike."
    )


def shared_values(summary: SweepSummary, group: Sequence[Trial]) -> dict[str, Any]:
    """Return the values that all trials of a group of `comparable` have, and not all trials of the
    others.
    """
    first = group[0]
    values = {
        axis.path: first.values[axis.path] for axis in summary.axes if axis.path in first.values
    }
    others = [
        trial
        for trial in summary.trials
        if trial.measured != first.measured and objectives(summary, trial)
    ]
    return {
        path: value
        for path, value in values.items()
        if all(trial.values.get(path) == value for trial in group)
        and any(trial.values.get(path) != value for trial in others)
    }


def _ways(summary: SweepSummary) -> list[Mapping[tuple[str, str], str]]:
    """Return the different `measured` of trials with a value, in the order of their numbers."""
    found: list[Mapping[tuple[str, str], str]] = []
    for trial in sorted(summary.trials, key=lambda trial: trial.number):
        if objectives(summary, trial) and trial.measured not in found:
            found.append(trial.measured)
    return found


def _losses(summary: SweepSummary, trial: Trial) -> tuple[float, ...] | None:
    """Return `objectives` with signs such that lower is better."""
    values = objectives(summary, trial)
    if values is None:
        return None
    return tuple(
        -value if mode == "max" else value
        for value, mode in zip(values, summary.modes, strict=True)
    )


def _fronts(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Front number of each point, 0 for non-dominated ones; all 0 with fewer than two
    coordinates.
    """
    fronts = [0] * len(points)
    if not points or len(points[0]) < 2:
        return fronts
    # In lexicographic order only an earlier point can dominate a later one.
    order = sorted(range(len(points)), key=lambda index: points[index])
    for place, index in enumerate(order):
        point = points[index]
        above = [
            fronts[other]
            for other in order[:place]
            if points[other] != point
            and all(x <= y for x, y in zip(points[other], point, strict=True))
        ]
        fronts[index] = 1 + max(above, default=-1)
    return fronts
