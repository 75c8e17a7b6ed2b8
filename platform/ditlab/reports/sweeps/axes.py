"""The axes of a sweep as columns of positions between 0 and 1, with ticks: what its figures and its forest read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from statistics import quantiles
from typing import Literal, NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

from ditlab.reports import cells
from ditlab.reports.sweeps.ranking import AxisInfo, Summary, Trial, objectives

_WIDE = 3.0
"""A metric whose upper quartile is this many times the lower one is drawn on a log scale."""
_FENCE = 3.0
"""Interquartile ranges beyond the quartile from where a value is far out (Tukey 1977, section 2D)."""
_LEAST_REFERENCE = 4
_MOST_NAMES = 14
"""Categories with a name each; of more, evenly spread ones have one."""
_NAME_CHARACTERS = 22


class Tick(NamedTuple):
    """A named position."""

    position: float
    label: str


@dataclass(frozen=True)
class Column:
    """Where each trial lies on an axis."""

    path: str
    scale: Literal["linear", "log", "category"]
    raw: Mapping[int, float]
    """By a trial's number: the value, its natural logarithm, or its category's index. Absent where it is not used."""
    low: float
    """What lies at 0, in the units of `raw`."""
    high: float
    """What lies at 1."""
    ticks: Sequence[Tick]
    names: Sequence[str] = ()
    """Of the categories, whole."""

    def position(self, raw: float) -> float:
        """Between 0 and 1; at the end for what lies beyond it, and in the middle if there is but one value."""
        return min(1.0, max(0.0, (raw - self.low) / (self.high - self.low))) if self.high > self.low else 0.5

    @cached_property
    def positions(self) -> dict[int, float]:
        """By a trial's number."""
        return {key: self.position(value) for key, value in self.raw.items()}


def column(axis: AxisInfo, trials: Sequence[Trial]) -> Column:
    """The column of `axis`.

    An axis with values that are not numbers is one of categories; a log axis with values that are not positive is
    drawn linearly.
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
    return Column(axis.path, "log" if log else "linear", raw, low, high, column_ticks(low, high, log) if raw else [])


def metric_column(summary: Summary, index: int = 0) -> Column:
    """The column of the sweep's metric `index`, over trials with a value.

    It reaches from the best value to the worst of the finished trials that is not far out among them, and as far
    again; what is worse lies at its end. Trials that diverged or were stopped at once would else press all others
    into one line.
    """
    name, worst_is_high = summary.metrics[index], summary.modes[index] == "min"
    values = {trial.number: at[index] for trial in summary.trials if (at := objectives(summary, trial)) is not None}
    done = [values[trial.number] for trial in summary.trials if trial.status == "finished" and trial.number in values]
    reference = done if len(done) >= _LEAST_REFERENCE else list(values.values())
    log = is_wide(values.values())
    raw = {key: math.log(value) if log else value for key, value in values.items()}
    if not raw:
        return Column(name, "linear", raw, 0.0, 0.0, [])
    sign = 1.0 if worst_is_high else -1.0
    losses = [sign * value for value in raw.values()]
    end = _end(min(losses), [sign * (math.log(value) if log else value) for value in reference])
    least, most = min(losses), min(max(losses), end)
    low, high = sorted((sign * least, sign * most))
    ticks = column_ticks(low, high, log)
    if max(losses) > most:
        edge, limit = (1.0, high) if worst_is_high else (0.0, low)
        ticks = [tick for tick in ticks if abs(tick.position - edge) > 0.09]
        beyond = "\N{GREATER-THAN OR EQUAL TO}" if worst_is_high else "\N{LESS-THAN OR EQUAL TO}"
        ticks.append(Tick(edge, f"{beyond} {math.exp(limit) if log else limit:.3g}"))
    return Column(name, "log" if log else "linear", raw, low, high, ticks)


def is_wide(values: Iterable[float]) -> bool:
    """Whether a log scale shows `values` best: all are positive, and the upper quartile is 3 times the lower one."""
    finite = sorted(value for value in values if math.isfinite(value))
    if len(finite) < 2 or finite[0] <= 0:
        return False
    lower, _, upper = quantiles(finite, n=4, method="inclusive")
    return upper > _WIDE * lower


def _end(least: float, reference: Sequence[float]) -> float:
    """The largest loss that is drawn where it lies."""
    if len(reference) < _LEAST_REFERENCE:
        return math.inf
    lower, _, upper = quantiles(reference, n=4, method="inclusive")
    worst = max(value for value in reference if value <= upper + _FENCE * (upper - lower))
    return 2 * worst - least if worst > least else math.inf


def column_ticks(low: float, high: float, log: bool) -> list[Tick]:
    """Round numbers of a column from `low` to `high`, in the units of `Column.raw`."""
    span = high - low
    return [
        Tick(((math.log(at) if log else at) - low) / span if span > 0 else 0.5, _label(at))
        for at in _nice(low, high, log)
    ]


def _label(value: float) -> str:
    """The shorter of `0.0003` and `3e-4`; ticks are round."""
    plain = cells.number(value)
    mantissa, _, power = f"{value:.3e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return short if len(short) < len(plain) - 1 else plain


def _nice(low: float, high: float, log: bool) -> list[float]:
    """Round numbers from `low` to `high`, which are logarithms where `log`."""
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


def _categories(path: str, values: Mapping[int, object]) -> Column:
    def order(item: tuple[str, object]) -> tuple[float, str]:
        name, value = item
        return (float(value) if isinstance(value, Real) and math.isfinite(value) else math.inf), name

    texts = {key: cells.value_text(value) for key, value in values.items()}
    names = [name for name, _ in sorted({texts[key]: value for key, value in values.items()}.items(), key=order)]
    index = {name: place for place, name in enumerate(names)}

    top = len(names) - 1
    stride = -(-len(names) // _MOST_NAMES) or 1
    ticks = [
        Tick(place / top if top else 0.5, cells.shorten(names[place], _NAME_CHARACTERS))
        for place in range(0, len(names), stride)
    ]
    raw = {key: float(index[text]) for key, text in texts.items()}
    return Column(path, "category", raw, 0.0, float(top), ticks, names)
