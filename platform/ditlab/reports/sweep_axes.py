"""Axes of a sweep as numbers, for its plots, and the importance of each for the metric."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ditlab.reports.formatting import describe_value, format_number, is_numeric
from ditlab.reports.sweep_records import (
    AxisInfo,
    SweepSummary,
    Trial,
    best,
    objectives,
    value_step,
    why_incomparable,
)

_FENCE = 3.0
"""A value this many interquartile ranges beyond the upper quartile is far out (Tukey 1977, section
2D).
"""
MIN_TRIALS = 8
_SHUFFLES = 999
ERROR = 0.05
"""Share of reports on equal trials that name an axis or a difference to the best configuration."""
_GROUPS = 4
_LEAST_IN_GROUP = 3
METHOD = (
    "Ranks are from 0, the best, to 100. A spread is the difference between the mean ranks of "
    "the best and the worst group of trials: of one value, or of a quarter of an axis' range. "
    "By chance: its mean over shuffled ranks. Ranks go by the last value; a trial that the "
    "scheduler stopped comes behind those that went further."
)


@dataclass(frozen=True)
class PlotAxis:
    """Values of trials on one axis."""

    raw: Mapping[int, float]
    """Value, or its category's index, by trial number; no entry where the axis is unused."""
    names: Sequence[str] = ()
    """Names of the categories; empty for numbers."""
    is_log: bool = False

    def text(self, raw: float) -> str:
        """Write a value of `raw` as the sweep has it."""
        if self.names:
            return self.names[int(raw)]
        return describe_value(float(format_number(raw).replace(",", "")))

    @property
    def positions(self) -> dict[int, float]:
        """Places of numbers by trial, from 0 at the lowest to 1 at the highest; 0.5 where all are
        equal.
        """
        scaled = self.raw
        if self.is_log:
            scaled = {key: math.log(value) for key, value in self.raw.items()}
        low = min(scaled.values(), default=0.0)
        width = max(scaled.values(), default=0.0) - low
        if not width:
            return dict.fromkeys(scaled, 0.5)
        return {key: (value - low) / width for key, value in scaled.items()}


def plot_axis(axis: AxisInfo, trials: Sequence[Trial]) -> PlotAxis:
    """Put the values of trials on an axis: categories where one is no number."""
    values = {
        trial.number: trial.values[axis.path] for trial in trials if axis.path in trial.values
    }
    if axis.scale != "category" and all(map(_is_number, values.values())):
        raw = {key: float(value) for key, value in values.items()}
        return PlotAxis(raw, is_log=axis.scale == "log" and min(raw.values(), default=0.0) > 0)
    texts = {key: describe_value(value) for key, value in values.items()}
    numbers = {
        texts[key]: float(value) if _is_number(value) else math.inf for key, value in values.items()
    }
    names = sorted(numbers, key=lambda name: (numbers[name], name))
    return PlotAxis({key: float(names.index(text)) for key, text in texts.items()}, names)


def _is_number(value: Any) -> bool:
    return is_numeric([value]) and math.isfinite(value)


def shown_values(summary: SweepSummary, index: int = 0) -> dict[int, float]:
    """Values of the sweep's metric `index` by trial number, of those that have one.

    A value that is far out stands at the fence: trials that diverged would compress all others into
    one line.
    """
    values = {}
    for trial in summary.trials:
        found = objectives(summary, trial)
        if found:
            values[trial.number] = found[index]
    if not values:
        return {}
    sign = 1.0 if summary.modes[index] == "min" else -1.0
    losses = sign * np.array(list(values.values()))
    lower, upper = np.quantile(losses, (0.25, 0.75))
    if upper > lower:
        losses = np.minimum(losses, upper + _FENCE * (upper - lower))
    return dict(zip(values, (sign * losses).tolist(), strict=True))


@dataclass(frozen=True)
class Importance:
    """Importance of an axis: how far the mean ranks of trials spread along it. Ranks are from 0,
    the best, to 100.
    """

    spread: float
    """Mean rank of the worst group of trials minus that of the best one."""
    by_chance: float
    """Mean spread of the same groups where ranks are shuffled."""
    best: str
    """Values of the best group."""
    is_clear: bool
    """True if ranks that are shuffled spread as far for its groups, along any axis, in no more than
    `error_of_each` of shuffles; never where `can_name_axes` is False.
    """


def ended_with_value(summary: SweepSummary) -> list[Trial]:
    """Return the finished and stopped trials that have a value of every metric."""
    ended = [trial for trial in summary.trials if trial.status in {"finished", "stopped"}]
    return [trial for trial in ended if objectives(summary, trial)]


def can_name_axes(summary: SweepSummary) -> bool:
    """Return True if the report may say that an axis matters: trials are enough and are measured
    alike, and nothing speaks against it (`why_no_axis`).
    """
    is_enough = len(ended_with_value(summary)) >= MIN_TRIALS
    return is_enough and not why_no_axis(summary) and not why_incomparable(summary)


def why_no_axis(summary: SweepSummary) -> str:
    """Return a sentence on why shuffled ranks are no measure of chance; empty where they are."""
    steps = sorted(value_step(summary, trial) for trial in ended_with_value(summary))
    if steps and steps[0] < steps[-1]:
        return f"The values are of steps {steps[0]:,} to {steps[-1]:,}, so no axis is named."
    if summary.verdict:
        return "The results decided on the seeds of each configuration, so no axis is named."
    if summary.scheduler == "pbt":
        return "Trials took over each other's weights, so no axis is named."
    return ""


def compares_configurations(summary: SweepSummary) -> bool:
    """Return True if the report has the difference of each configuration to the best one.

    It has none of one seed, of several metrics, without a best configuration, and where the
    scheduler has a verdict: its number of seeds followed the results, so that its own intervals
    alone hold.
    """
    if summary.num_seeds < 2 or summary.verdict or len(summary.metrics) > 1:
        return False
    return best(summary) is not None


def error_of_each(summary: SweepSummary) -> float:
    """Return the error of each kind of conclusion of a report, so that all together have ERROR."""
    kinds = [can_name_axes(summary), compares_configurations(summary)]
    return ERROR / max(1, sum(kinds))


def outcome_ranks(summary: SweepSummary, trials: Sequence[Trial]) -> np.ndarray:
    """Ranks (trials,) of ended trials by the first metric, 0 for the best; ties share their mean
    rank.

    Ranks instead of values, as one diverged trial would otherwise dominate the variance, and as
    values at different steps are not comparable: a trial that the scheduler stopped late did better
    than one that it stopped early.
    """
    name = summary.metrics[0]
    sign = -1.0 if summary.modes[0] == "max" else 1.0
    keys = []
    for trial in trials:
        reached = trial.step if trial.status == "stopped" else math.inf
        keys.append((-reached, sign * trial.metrics[name]))
    order = sorted(keys)
    return np.array([(bisect_left(order, key) + bisect_right(order, key) - 1) / 2 for key in keys])


def importance(summary: SweepSummary) -> dict[str, Importance]:
    """Return the importance of each axis for the first metric by path, the largest spread first.

    It is over finished and stopped trials with a value; {} for too few, where all have one value,
    and where trials are not comparable.
    """
    trials = ended_with_value(summary)
    ranks = outcome_ranks(summary, trials)
    if len(trials) < MIN_TRIALS or np.ptp(ranks) == 0 or why_incomparable(summary):
        return {}
    is_tested = can_name_axes(summary)
    error = error_of_each(summary)
    ranks = 100 * ranks / (len(trials) - 1)
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
    spreads: dict[str, float] = {}
    by_shuffle: dict[str, np.ndarray] = {}
    best_values: dict[str, str] = {}
    for axis in summary.axes:
        placed = plot_axis(axis, trials)
        groups = _groups(placed, trials)
        is_in = groups == np.unique(groups[groups >= 0])[:, None]  # (num_groups, num_trials)
        if len(is_in) < 2:
            continue
        weights = is_in / is_in.sum(axis=1, keepdims=True)
        means = weights @ ranks
        spreads[axis.path] = float(np.ptp(means))
        by_shuffle[axis.path] = np.ptp(shuffled @ weights.T, axis=1)
        values = [
            placed.raw[trials[index].number] for index in np.flatnonzero(is_in[means.argmin()])
        ]
        ends = dict.fromkeys(placed.text(value) for value in (min(values), max(values)))
        best_values[axis.path] = " to ".join(ends)
    if not spreads:
        return {}
    # One limit for all axes, as each spread is compared with its own mean by chance.
    by_chance = {path: float(each.mean()) for path, each in by_shuffle.items()}
    largest = np.max([each / by_chance[path] for path, each in by_shuffle.items()], axis=0)
    found = {}
    for path, spread in sorted(spreads.items(), key=lambda item: -item[1]):
        num_as_far = int((largest >= spread / by_chance[path]).sum())
        is_clear = is_tested and (1 + num_as_far) / (1 + _SHUFFLES) <= error
        found[path] = Importance(spread, by_chance[path], best_values[path], is_clear)
    return found


def _groups(axis: PlotAxis, trials: Sequence[Trial]) -> np.ndarray:
    """Group trials by an axis, (trials,): by category or value, many values by quarters; -1 where
    the axis is not used, or where too few trials share the group."""
    raw = np.array([axis.raw.get(trial.number, math.nan) for trial in trials])
    used = ~np.isnan(raw)
    values = np.unique(raw[used])
    groups = np.full(len(trials), -1)
    if len(values) <= _GROUPS or axis.names:
        groups[used] = np.searchsorted(values, raw[used])
    else:
        edges = np.quantile(raw[used], np.arange(1, _GROUPS) / _GROUPS)
        groups[used] = np.searchsorted(edges, raw[used], side="right")
    for group, count in Counter(groups.tolist()).items():
        if count < _LEAST_IN_GROUP:
            groups[groups == group] = -1
    return groups
