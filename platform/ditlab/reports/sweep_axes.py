"""Axes of a sweep's plots, on which trials have positions from 0 to 1, and the importance of each for the metric."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from statistics import quantiles
from typing import Literal

import numpy as np

from ditlab.reports.charts import AxisScale, number_label
from ditlab.reports.formatting import describe_value, format_number, shorten
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial, objectives, why_incomparable
from ditlab_models.figures import Tick

_WIDE = 3.0
_FENCE = 3.0
"""A value this many interquartile ranges beyond the upper quartile is far out (Tukey 1977, section 2D)."""
_LEAST_REFERENCE = 4
_MOST_NAMES = 14
"""Most categories that are all named; of more, evenly spaced ones are."""
_NAME_CHARACTERS = 22
MIN_TRIALS = 8
_SHUFFLES = 400
_ERROR = 0.05
"""Share of sweeps of equal trials in which any axis counts as clear."""
_GROUPS, _LEAST_IN_GROUP = 4, 3
METHOD = (
    "Ranks are from 0, the best, to 100. A spread is the difference between the mean ranks of the best and the worst "
    "group of trials: of one value, or of a quarter of an axis' range. By chance: its mean over shuffled ranks. Ranks "
    "go by the last value; a trial that the scheduler stopped comes behind those that went further."
)


@dataclass(frozen=True)
class PlotAxis:
    """Positions of trials on one axis, and its ticks."""

    path: str
    scale: Literal["linear", "log", "category"]
    raw: Mapping[int, float]
    """Value, its natural logarithm, or its category's index, by trial number; no entry where the axis is unused."""
    low: float
    """Value at position 0, in the units of `raw`."""
    high: float
    """Value at position 1."""
    ticks: Sequence[Tick]
    names: Sequence[str] = ()
    """Names of the categories, in full."""

    def position(self, raw: float) -> float:
        """Map a value to [0, 1], clipped at the ends; 0.5 where the axis has only one value."""
        return min(1.0, max(0.0, (raw - self.low) / (self.high - self.low))) if self.high > self.low else 0.5

    def text(self, raw: float) -> str:
        """Write a value of `raw` as the sweep has it."""
        if self.scale == "category":
            return self.names[int(raw)]
        return describe_value(float(format_number(math.exp(raw) if self.scale == "log" else raw)))

    @cached_property
    def positions(self) -> dict[int, float]:
        """Positions by trial number."""
        return {key: self.position(value) for key, value in self.raw.items()}


def plot_axis(axis: AxisInfo, trials: Sequence[Trial]) -> PlotAxis:
    """Place trials on an axis: categorical for values that are no numbers, linear where a logarithm has none."""
    values = {trial.number: trial.values[axis.path] for trial in trials if axis.path in trial.values}
    if axis.scale == "category" or not all(map(_is_number, values.values())):
        return _category_axis(axis.path, values)
    log = axis.scale == "log" and all(value > 0 for value in values.values())
    raw = {key: math.log(value) if log else float(value) for key, value in values.items()}
    low, high = min(raw.values(), default=0.0), max(raw.values(), default=0.0)
    ticks = _axis_ticks(low, high, log) if raw else []
    return PlotAxis(axis.path, "log" if log else "linear", raw, low, high, ticks)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _category_axis(path: str, values: Mapping[int, object]) -> PlotAxis:
    """Place trials by the names of their values, numbers in their order before all other names."""

    def order(item: tuple[str, object]) -> tuple[float, str]:
        name, value = item
        return (float(value) if isinstance(value, Real) and math.isfinite(value) else math.inf), name

    texts = {key: describe_value(value) for key, value in values.items()}
    by_name = {texts[key]: value for key, value in values.items()}
    names = [name for name, _ in sorted(by_name.items(), key=order)]
    top = len(names) - 1
    stride = math.ceil(len(names) / _MOST_NAMES) or 1
    ticks = [
        Tick(place / top if top else 0.5, shorten(names[place], _NAME_CHARACTERS))
        for place in range(0, len(names), stride)
    ]
    raw = {key: float(names.index(text)) for key, text in texts.items()}
    return PlotAxis(path, "category", raw, 0.0, float(top), ticks, names)


def metric_axis(summary: SweepSummary, index: int = 0) -> PlotAxis:
    """Place the trials with a value on an axis of the sweep's metric `index`.

    The axis reaches from the best value to the worst finished one that is not far out, and as far again; worse values
    lie at its end. Otherwise trials that diverged or were stopped early would compress all others into one line. It is
    logarithmic for positive values whose upper quartile exceeds 3 times the lower one.
    """
    name = summary.metrics[index]
    worst_is_high = summary.modes[index] == "min"
    values = {trial.number: at[index] for trial in summary.trials if (at := objectives(summary, trial))}
    if not values:
        return PlotAxis(name, "linear", values, 0.0, 0.0, [])
    log = _is_wide(list(values.values()))
    raw = {key: math.log(value) if log else value for key, value in values.items()}
    sign = 1.0 if worst_is_high else -1.0
    losses = {key: sign * value for key, value in raw.items()}
    most = _far_end(summary, losses)
    low, high = sorted((sign * min(losses.values()), sign * most))
    ticks = _axis_ticks(low, high, log)
    if max(losses.values()) > most:
        edge, limit = (1.0, high) if worst_is_high else (0.0, low)
        ticks = [tick for tick in ticks if abs(tick.position - edge) > 0.09]
        beyond = "\N{GREATER-THAN OR EQUAL TO}" if worst_is_high else "\N{LESS-THAN OR EQUAL TO}"
        ticks.append(Tick(edge, f"{beyond} {math.exp(limit) if log else limit:.3g}"))
    return PlotAxis(name, "log" if log else "linear", raw, low, high, ticks)


def _is_wide(values: Sequence[float]) -> bool:
    if len(values) < 2 or min(values) <= 0:
        return False
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return upper > _WIDE * lower


def _far_end(summary: SweepSummary, losses: Mapping[int, float]) -> float:
    """Loss at which a metric's axis ends."""
    done = [losses[trial.number] for trial in summary.trials if trial.status == "finished" and trial.number in losses]
    reference = done if len(done) >= _LEAST_REFERENCE else list(losses.values())
    worst = max(losses.values())
    if len(reference) < _LEAST_REFERENCE:
        return worst
    lower, _, upper = quantiles(reference, n=4, method="inclusive")
    least = min(losses.values())
    last = max(value for value in reference if value <= upper + _FENCE * (upper - lower))
    return min(worst, 2 * last - least) if last > least else worst


def _axis_ticks(low: float, high: float, log: bool) -> list[Tick]:
    """Ticks at round numbers from `low` to `high`, in the units of `PlotAxis.raw`: logarithms if `log`."""
    least, most = (math.exp(low), math.exp(high)) if log else (low, high)
    return AxisScale(least, most, 0.0, 1.0, log).ticks() if high > low else [Tick(0.5, number_label(least))]


@dataclass(frozen=True)
class Importance:
    """Importance of an axis: how far the mean ranks of trials spread along it. Ranks are from 0, the best, to 100."""

    spread: float
    """Mean rank of the worst group of trials minus that of the best one."""
    by_chance: float
    """Mean spread of the same groups where ranks are shuffled."""
    best: str
    """Values of the best group."""
    is_clear: bool
    """True where no more than `_ERROR` of shuffles have an axis that spreads as far for its groups."""


def ended_with_value(summary: SweepSummary) -> list[Trial]:
    """Return the finished and stopped trials that have a value of every metric."""
    ended = [trial for trial in summary.trials if trial.status in {"finished", "stopped"}]
    return [trial for trial in ended if objectives(summary, trial)]


def outcome_ranks(summary: SweepSummary, trials: Sequence[Trial]) -> np.ndarray:
    """Ranks (trials,) of ended trials by the first metric, 0 for the best; ties share their mean rank.

    Ranks instead of values, as one diverged trial would otherwise dominate the variance, and as values at different
    steps are not comparable: a trial that the scheduler stopped late did better than one that it stopped early.
    """
    sign = -1.0 if summary.modes[0] == "max" else 1.0
    keys = [
        (-trial.step if trial.status == "stopped" else -math.inf, sign * trial.metrics[summary.metrics[0]])
        for trial in trials
    ]
    order = sorted(keys)
    return np.array([bisect_left(order, key) + (bisect_right(order, key) - bisect_left(order, key) - 1) / 2
                     for key in keys])  # fmt: skip


def importance(summary: SweepSummary) -> dict[str, Importance]:
    """Return the importance of each axis for the first metric by path, the largest spread first.

    It is over finished and stopped trials with a value; {} for too few, where all have one value, and where trials are
    not comparable.
    """
    trials = ended_with_value(summary)
    ranks = outcome_ranks(summary, trials)
    if len(trials) < MIN_TRIALS or np.ptp(ranks) == 0 or why_incomparable(summary):
        return {}
    ranks = 100 * ranks / (len(trials) - 1)
    shuffled = np.random.default_rng(0).permuted(np.tile(ranks, (_SHUFFLES, 1)), axis=1)
    spreads: dict[str, float] = {}
    by_shuffle: dict[str, np.ndarray] = {}
    best: dict[str, str] = {}
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
        values = [placed.raw[trials[index].number] for index in np.flatnonzero(is_in[means.argmin()])]
        ends = dict.fromkeys(placed.text(value) for value in (min(values), max(values)))
        best[axis.path] = " to ".join(ends)
    if not spreads:
        return {}
    # One limit for all axes, as each spread is compared with its own mean by chance.
    by_chance = {path: float(each.mean()) for path, each in by_shuffle.items()}
    largest = np.max([each / by_chance[path] for path, each in by_shuffle.items()], axis=0)
    limit = float(np.quantile(largest, 1 - _ERROR))
    return {
        path: Importance(spread, by_chance[path], best[path], spread > limit * by_chance[path])
        for path, spread in sorted(spreads.items(), key=lambda item: -item[1])
    }


def _groups(axis: PlotAxis, trials: Sequence[Trial]) -> np.ndarray:
    """Group trials by an axis, (trials,): by category or value, many values by quarters; -1 where the axis is not used,
    or where too few trials share the group."""
    raw = np.array([axis.raw.get(trial.number, math.nan) for trial in trials])
    used = ~np.isnan(raw)
    values = np.unique(raw[used])
    groups = np.full(len(trials), -1)
    if len(values) <= _GROUPS or axis.scale == "category":
        groups[used] = np.searchsorted(values, raw[used])
    else:
        edges = np.quantile(raw[used], np.arange(1, _GROUPS) / _GROUPS)
        groups[used] = np.searchsorted(edges, raw[used], side="right")
    for group, count in Counter(groups.tolist()).items():
        if count < _LEAST_IN_GROUP:
            groups[groups == group] = -1
    return groups
