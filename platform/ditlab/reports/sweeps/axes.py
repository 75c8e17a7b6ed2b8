"""Axes of a sweep's plots: positions of its trials between 0 and 1, with ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from statistics import quantiles
from typing import Literal, NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

from ditlab.reports.formatting import describe_value, format_number, shorten
from ditlab.reports.sweeps.ranking import objectives
from ditlab.reports.sweeps.records import AxisInfo, SweepSummary, Trial

_WIDE = 3.0
"""A metric whose upper quartile exceeds this many times the lower one is drawn on a log scale."""
_FENCE = 3.0
"""A value this many interquartile ranges beyond the upper quartile is far out (Tukey 1977, section 2D)."""
_LEAST_REFERENCE = 4
_MOST_NAMES = 14
"""Most categories that are all named; of more, evenly spaced ones are."""
_NAME_CHARACTERS = 22


class Tick(NamedTuple):
    """Tick mark: a position between 0 and 1 and its label."""

    position: float
    label: str


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
    """Place trials on an axis of the search space.

    An axis with values other than numbers becomes categorical; a log axis with values that are not positive becomes
    linear.
    """
    values = {trial.number: trial.values[axis.path] for trial in trials if axis.path in trial.values}
    numeric = all(
        isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) for value in values.values()
    )
    if axis.scale == "category" or not numeric:
        return _categories(axis.path, values)
    log = axis.scale == "log" and all(value > 0 for value in values.values())
    raw = {key: math.log(value) if log else float(value) for key, value in values.items()}
    low, high = min(raw.values(), default=0.0), max(raw.values(), default=0.0)
    return PlotAxis(axis.path, "log" if log else "linear", raw, low, high, axis_ticks(low, high, log) if raw else [])


def metric_axis(summary: SweepSummary, index: int = 0) -> PlotAxis:
    """Place the trials with a value on an axis of the sweep's metric `index`.

    The axis reaches from the best value to the worst finished one that is not far out, and as far again; worse values
    lie at its end. Otherwise trials that diverged or were stopped early would compress all others into one line.
    """
    name, worst_is_high = summary.metrics[index], summary.modes[index] == "min"
    values = {trial.number: at[index] for trial in summary.trials if (at := objectives(summary, trial)) is not None}
    done = [values[trial.number] for trial in summary.trials if trial.status == "finished" and trial.number in values]
    reference = done if len(done) >= _LEAST_REFERENCE else list(values.values())
    log = is_wide(values.values())
    raw = {key: math.log(value) if log else value for key, value in values.items()}
    if not raw:
        return PlotAxis(name, "linear", raw, 0.0, 0.0, [])
    sign = 1.0 if worst_is_high else -1.0
    losses = [sign * value for value in raw.values()]
    end = _end(min(losses), [sign * (math.log(value) if log else value) for value in reference])
    least, most = min(losses), min(max(losses), end)
    low, high = sorted((sign * least, sign * most))
    ticks = axis_ticks(low, high, log)
    if max(losses) > most:
        edge, limit = (1.0, high) if worst_is_high else (0.0, low)
        ticks = [tick for tick in ticks if abs(tick.position - edge) > 0.09]
        beyond = "\N{GREATER-THAN OR EQUAL TO}" if worst_is_high else "\N{LESS-THAN OR EQUAL TO}"
        ticks.append(Tick(edge, f"{beyond} {math.exp(limit) if log else limit:.3g}"))
    return PlotAxis(name, "log" if log else "linear", raw, low, high, ticks)


def is_wide(values: Iterable[float]) -> bool:
    """Return True if `values` are positive and their upper quartile exceeds 3 times the lower one: use a log scale."""
    finite = sorted(value for value in values if math.isfinite(value))
    if len(finite) < 2 or finite[0] <= 0:
        return False
    lower, _, upper = quantiles(finite, n=4, method="inclusive")
    return upper > _WIDE * lower


def _end(least: float, reference: Sequence[float]) -> float:
    """Largest loss that is drawn at its true position."""
    if len(reference) < _LEAST_REFERENCE:
        return math.inf
    lower, _, upper = quantiles(reference, n=4, method="inclusive")
    worst = max(value for value in reference if value <= upper + _FENCE * (upper - lower))
    return 2 * worst - least if worst > least else math.inf


def axis_ticks(low: float, high: float, log: bool) -> list[Tick]:
    """Ticks at round numbers from `low` to `high`, in the units of `PlotAxis.raw`."""
    span = high - low
    return [
        Tick(((math.log(at) if log else at) - low) / span if span > 0 else 0.5, _label(at))
        for at in _round_numbers(low, high, log)
    ]


def _label(value: float) -> str:
    """Format a round number in its shorter form, `0.0003` or `3e-4`."""
    plain = format_number(value)
    mantissa, _, power = f"{value:.3e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return short if len(short) < len(plain) - 1 else plain


def _round_numbers(low: float, high: float, log: bool) -> list[float]:
    """Choose round numbers from `low` to `high`, which are logarithms if `log`."""
    least, most = (math.exp(low), math.exp(high)) if log else (low, high)
    if not high > low:
        return [least]
    decades = math.log10(most / least) if log else 0.0
    slack = 1e-9 * (most - least)
    candidates = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(least, most)
    if log and decades > 0.7:
        digits = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.3 else (1.0, 2.0, 5.0)
        candidates = LogLocator(subs=digits, numticks=8).tick_values(least, most)
    ticks = [float(at) for at in candidates if least - slack <= at <= most + slack]
    return ticks if len(ticks) > 1 else [least, most]


def _categories(path: str, values: Mapping[int, object]) -> PlotAxis:
    def order(item: tuple[str, object]) -> tuple[float, str]:
        name, value = item
        return (float(value) if isinstance(value, Real) and math.isfinite(value) else math.inf), name

    texts = {key: describe_value(value) for key, value in values.items()}
    names = [name for name, _ in sorted({texts[key]: value for key, value in values.items()}.items(), key=order)]
    index = {name: place for place, name in enumerate(names)}

    top = len(names) - 1
    stride = -(-len(names) // _MOST_NAMES) or 1
    ticks = [
        Tick(place / top if top else 0.5, shorten(names[place], _NAME_CHARACTERS))
        for place in range(0, len(names), stride)
    ]
    raw = {key: float(index[text]) for key, text in texts.items()}
    return PlotAxis(path, "category", raw, 0.0, float(top), ticks, names)
