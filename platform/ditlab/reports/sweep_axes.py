"""Axes of a sweep's plots, on which trials have positions from 0 to 1, and the importance of each for the metric."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from statistics import quantiles
from typing import Literal

import numpy as np

from ditlab.reports.charts import AxisScale, number_label
from ditlab.reports.formatting import describe_value, shorten
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial, objectives, why_incomparable
from ditlab_models.figures import Tick

_WIDE = 3.0
_FENCE = 3.0
"""A value this many interquartile ranges beyond the upper quartile is far out (Tukey 1977, section 2D)."""
_LEAST_REFERENCE = 4
_MOST_NAMES = 14
"""Most categories that are all named; of more, evenly spaced ones are."""
_NAME_CHARACTERS = 22
MIN_TRIALS = 6
_TREES = 200
_REPEATS = 8
_SEED = 0
METHOD = (
    "Permutation importance (Breiman 2001) of a random forest that predicts a trial's rank from the values of its "
    "axes: how much worse it predicts trials that it was not fitted on once an axis' values are shuffled, as a share "
    "of the sum over all axes; its weakness is that axes which go together, such as a choice and the axis that it "
    "switches on, share their effect between them. Ranks go by the last value; a trial that the scheduler stopped "
    "comes behind those that went further."
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
    """Importance of each axis, or the reason why there is none."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Fraction of the importance by axis path; they sum to 1. Empty where nothing is known."""
    explained: float | None = None
    """R^2 of the forest on trials that it was not fitted on (out of bag)."""
    num_trials: int = 0
    reason: str = ""
    """Reason for the lack of shares."""


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


def importance(summary: SweepSummary) -> Importance:
    """Compute each axis' permutation importance for the first metric, over finished and stopped trials with a value."""
    trials = ended_with_value(summary)
    num = len(trials)
    if reason := why_incomparable(summary):
        return Importance(num_trials=num, reason=reason)
    if num < MIN_TRIALS:
        return Importance(
            num_trials=num, reason=f"Too few trials: {num} ended with a value, and {MIN_TRIALS} are needed."
        )
    ranks = outcome_ranks(summary, trials)
    if len(set(ranks)) == 1:
        return Importance(num_trials=num, reason=f"All trials reached the same {summary.metrics[0]}.")
    numbers = [trial.number for trial in trials]
    features = {axis.path: _features(plot_axis(axis, trials), numbers) for axis in summary.axes}
    features = {path: block for path, block in features.items() if block.shape[1]}
    if not features:
        return Importance(num_trials=num, reason="No axis was set to more than one value.")
    explained, losses = _forest(features, ranks)
    total = sum(losses.values())
    if explained < 0 or total <= 0:
        reason = (
            "The axes explain nothing of trials that the forest was not fitted on "
            f"(R^2 {explained:.2f} with {num} trials); shares would be noise."
        )
        return Importance(explained=explained, num_trials=num, reason=reason)
    return Importance({axis.path: losses.get(axis.path, 0.0) / total for axis in summary.axes}, explained, num)


def _features(axis: PlotAxis, numbers: list[int]) -> np.ndarray:
    """Feature columns (trials, columns) of an axis: its value or a column a category, and unused; constant ones go."""
    raw = np.array([axis.raw.get(number, np.nan) for number in numbers])
    used = ~np.isnan(raw)
    if axis.scale == "category":
        block = np.stack([raw == place for place in range(len(axis.names))], axis=1) if axis.names else used[:, :0]
    else:
        block = np.where(used, raw, np.median(raw[used]) if used.any() else 0.0)[:, None]
    block = np.concatenate([block.astype(float), ~used[:, None]], axis=1)
    return block[:, (block != block[0]).any(axis=0)]


def _forest(features: Mapping[str, np.ndarray], target: np.ndarray) -> tuple[float, dict[str, float]]:
    """Out-of-bag R^2, and the drop in it from permuting each axis' columns together; at least 0."""
    from sklearn.ensemble import RandomForestRegressor

    table = np.concatenate(list(features.values()), axis=1).astype(np.float32)
    forest = RandomForestRegressor(_TREES, random_state=_SEED, max_features=0.5, bootstrap=True).fit(table, target)
    num = len(target)
    held_out = [np.setdiff1d(np.arange(num), fitted) for fitted in forest.estimators_samples_]

    def explained(rows_of: Callable[[np.ndarray], np.ndarray]) -> float:
        sums, counts = np.zeros(num), np.zeros(num)
        for tree, rows in zip(forest.estimators_, held_out, strict=True):
            if len(rows):
                sums[rows] += tree.tree_.predict(rows_of(rows)).reshape(-1)
                counts[rows] += 1
        seen = counts > 0
        errors = (target - sums / np.maximum(counts, 1))[seen]
        spread = (target - target[seen].mean())[seen]
        return 1.0 - float((errors**2).sum() / max((spread**2).sum(), 1e-12))

    base = explained(lambda rows: table[rows])
    generator = np.random.default_rng(_SEED)
    losses = {}
    start = 0
    for path, block in features.items():
        columns = slice(start, start + block.shape[1])
        start += block.shape[1]
        drops = []
        for _ in range(_REPEATS):
            shuffled = table.copy()
            shuffled[:, columns] = table[generator.permutation(num)][:, columns]
            drops.append(base - explained(shuffled.__getitem__))
        losses[path] = max(0.0, float(np.mean(drops)))
    return base, losses
