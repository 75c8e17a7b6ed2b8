"""Curves thinned without losing a peak, running medians, and charts of pages: curves as SVG, with
values to read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ditlab.reports.formatting import format_number, shorten
from ditlab_models.figures import Tick

WIDTH = 420
HEIGHT = 250
"""Size of a chart in its own units; a page shows it at 350 to 580 pixels of width."""
_LEFT = 66
_RIGHT = 410
_TOP = 10
_BOTTOM = 222
_LOG_RATIO = 20.0
"""Ratio of the largest to the smallest value from which a scale is logarithmic."""
MOST_PLAIN = 160
"""Points of a page's curve that is drawn as it is."""
MOST_STRETCHES = 200
_FEWEST_IN_STRETCH = 4
_MOST_BAD = 100
_LARGEST = 1e300
"""Values beyond are drawn at it: differences of any two are finite."""
_SMOOTHED_POINTS = 500
_MOST_MARKERS = 40
_MOST_LABEL = 60
_NUM_TICKS = 6


@dataclass(frozen=True, eq=False)
class ThinCurve:
    """A curve of few points, (num,) each."""

    steps: np.ndarray
    values: np.ndarray
    """Median of each stretch; the points themselves where the curve is short."""
    low: np.ndarray
    high: np.ndarray
    """Smallest and largest value of each stretch."""
    num_points: int
    """Finite points that it stands for."""
    num_bad: int
    """Points that were NaN or infinite, which are skipped."""
    bad_steps: np.ndarray
    """Steps of the first of those."""
    last: float
    """The last finite point itself, not its stretch's median; NaN where there is none."""

    @property
    def is_thinned(self) -> bool:
        """True if a value is the median of several points."""
        return self.num_points > len(self.values)


def thin(
    steps: np.ndarray, values: np.ndarray, most: int = MOST_STRETCHES, most_plain: int = MOST_PLAIN
) -> ThinCurve:
    """Thin a curve of more than `most_plain` points to at most `most` stretches of equally many
    points.
    """
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps = steps[order]
        values = values[order]
    is_finite = np.isfinite(values)
    bad = steps[~is_finite]
    steps = steps[is_finite]
    values = np.clip(values[is_finite], -_LARGEST, _LARGEST)
    num = len(values)
    last = float(values[-1]) if num else float("nan")
    low = high = values
    if num > most_plain:
        length = max(_FEWEST_IN_STRETCH, -(-num // most))
        starts = np.arange(0, num, length)
        middles = starts + length // 2
        # the curve reaches from its first step to its last
        middles[0] = 0
        middles[-1] = num - 1
        low = np.minimum.reduceat(values, starts)
        high = np.maximum.reduceat(values, starts)
        values = np.array([np.median(values[start : start + length]) for start in starts])
        steps = steps[middles]
    return ThinCurve(steps, values, low, high, num, len(bad), bad[:_MOST_BAD], last)


def even_places(num: int, most: int) -> np.ndarray:
    """Places of at most `most` of `num` items, evenly spread from the first to the last, int64."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(int))


def running_median(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of at most 500 points, and centred running medians there of `window` values, ignoring
    NaN.
    """
    middles = even_places(len(values), _SMOOTHED_POINTS)
    medians = []
    for middle in middles:
        near = values[max(0, middle - (window - 1) // 2) : middle + window // 2 + 1]
        near = near[~np.isnan(near)]
        medians.append(float(np.median(near)) if len(near) else np.nan)
    return middles, np.array(medians)


@dataclass(frozen=True, eq=False)
class CurvePoints:
    """A curve before it is drawn."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    role: str = "train"
    """`train`, `held-out` or `other`, which decides the colour."""

    @property
    def label(self) -> str:
        """The name as it is shown."""
        return shorten(self.name, _MOST_LABEL)


_Thinned = tuple[CurvePoints, ThinCurve]


@dataclass(frozen=True)
class DrawnCurve:
    """A curve as SVG."""

    role: str
    path: str
    band: str
    """Range of the values that each point stands for; empty where it stands for one."""
    markers: Sequence[tuple[float, float]]
    """Points drawn as dots: of a curve with few."""


@dataclass(frozen=True)
class Chart:
    """A chart, ready to be put on a page."""

    key: str
    """Name of its elements in the page: letters, digits and `-`; no other chart of the page has
    it.
    """
    title: str
    note: str
    alternative: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    curves: Sequence[DrawnCurve]
    bad_marks: Sequence[float]
    """Places of steps with NaN or infinite values, at the bottom."""
    data: Mapping[str, Any]
    """Values and scales, for a page's script."""

    @property
    def is_thinned(self) -> bool:
        """True if a curve's point stands for several."""
        return any(curve.band for curve in self.curves)

    box: ClassVar = (_LEFT, _RIGHT, _TOP, _BOTTOM)
    """Left, right, top and bottom of the plot in the chart's units."""


def draw_chart(title: str, curves: Sequence[CurvePoints]) -> Chart | None:
    """Draw curves over their common steps; None where none has a finite value."""
    thinned = [(curve, thin(curve.steps, curve.values)) for curve in curves]
    drawn = [(curve, points) for curve, points in thinned if points.num_points]
    if not drawn:
        return None
    bad = np.unique(np.concatenate([points.bad_steps for _, points in thinned]))
    steps = np.concatenate([bad, *(points.steps for _, points in drawn)]).astype(float)
    low = float(steps.min())
    high = float(steps.max())
    x = linear_scale(low, high, _LEFT, _RIGHT)
    if high > low:
        x = AxisScale(low, high, _LEFT, _RIGHT)
    y = _y_scale([points for _, points in drawn])
    notes = ["log scale"] if y.is_log else []
    num_bad = max(points.num_bad for _, points in thinned)
    if num_bad:
        steps_word = "steps" if num_bad > 1 else "step"
        notes.append(f"x: NaN or infinity in {num_bad:,} {steps_word}")
    last = ", ".join(map(_last, drawn))
    return Chart(
        key="chart",
        title=shorten(title, 2 * _MOST_LABEL),
        note="; ".join(notes),
        alternative=f"{shorten(title, _MOST_LABEL)} over steps; last {last}.",
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        curves=[_draw(curve, points, x, y) for curve, points in drawn],
        bad_marks=[round(float(place), 1) for place in x.places(bad)],
        data={
            "curves": [*map(_data, drawn)],
            "x": astuple(x)[:4],
            "y": astuple(y)[:4],
            "log": y.is_log,
        },
    )


def _last(drawn: _Thinned) -> str:
    curve, points = drawn
    return f"{curve.label} {format_number(points.last)}"


def _data(drawn: _Thinned) -> dict[str, Any]:
    """A curve's values, for the page's script."""
    curve, points = drawn
    found = {
        "name": curve.label,
        "role": curve.role,
        "steps": points.steps.tolist(),
        "values": _short(points.values),
        "last": float(f"{points.last:.5g}"),
    }
    if points.is_thinned:
        found["low"] = _short(points.low)
        found["high"] = _short(points.high)
    return found


def _y_scale(curves: Sequence[ThinCurve]) -> AxisScale:
    """Range of all medians, and of all but the wildest hundredth of what they stand for."""
    values = np.concatenate([points.values for points in curves])
    low = float(min(values.min(), *(np.quantile(points.low, 0.01) for points in curves)))
    high = float(max(values.max(), *(np.quantile(points.high, 0.99) for points in curves)))
    if low > 0 and high / low > _LOG_RATIO:
        return AxisScale(low / 1.1, high * 1.1, _BOTTOM, _TOP, is_log=True)
    return linear_scale(low, high, _BOTTOM, _TOP, margin=0.05)


def _draw(curve: CurvePoints, points: ThinCurve, x: AxisScale, y: AxisScale) -> DrawnCurve:
    def rounded(places: np.ndarray) -> list[float]:
        return [round(place, 1) for place in places.tolist()]

    across = rounded(x.places(points.steps))
    # beyond the axes, where the plot's edge cuts them off
    up, low, high = (
        rounded(np.clip(y.places(each), _TOP - 4, _BOTTOM + 4))
        for each in (points.values, points.low, points.high)
    )
    band = ""
    if points.is_thinned:
        band = f"{_line(across, high)}L{_line(across[::-1], low[::-1])[1:]}Z"
    markers = list(zip(across, up, strict=True)) if len(across) <= _MOST_MARKERS else []
    return DrawnCurve(curve.role, _line(across, up), band, markers)


def _line(across: Sequence[float], up: Sequence[float]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in zip(across, up, strict=True))


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


@dataclass(frozen=True)
class AxisScale:
    """Linear or logarithmic scale from values to places."""

    low: float
    high: float
    begin: float
    """Place of `low`."""
    end: float
    """Place of `high`."""
    is_log: bool = False

    def places(self, values: np.ndarray) -> np.ndarray:
        """Places of values."""
        low = self.low
        high = self.high
        at = np.asarray(values, dtype=float)
        if self.is_log:
            low = math.log10(low)
            high = math.log10(high)
            at = np.log10(np.maximum(at, 1e-300))
        return self.begin + (self.end - self.begin) * ((at - low) / (high - low))

    def ticks(self) -> list[Tick]:
        """Ticks at multiples of 1, 2, 2.5 or 5 times a power of ten; on a wide logarithmic scale at
        powers.
        """
        if self.is_log and self.high > 5 * self.low:
            lowest = math.floor(math.log10(self.low))
            highest = math.ceil(math.log10(self.high))
            every = max(1, -(-(highest - lowest) // _NUM_TICKS))
            values = [10.0**power for power in range(lowest, highest + 1, every)]
            if highest - lowest <= 2:
                values = [each * factor for each, factor in product(values, (1, 2, 5))]
            values = [value for value in values if self.low <= value <= self.high]
        else:
            raw = (self.high - self.low) / _NUM_TICKS
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(
                factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999
            )
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            values = [
                float(f"{number * step:.12g}") for number in range(first, min(last, first + 20) + 1)
            ]
        return [Tick(float(self.places(np.array(value))), number_label(value)) for value in values]


def linear_scale(
    low: float, high: float, begin: float, end: float, margin: float = 0.0
) -> AxisScale:
    """Make a linear scale; a range of one value is widened, and `margin` (a fraction) is left on
    both sides.
    """
    # equal, but for rounding
    if high - low <= max(1e-9 * max(abs(low), abs(high)), sys.float_info.min):
        wide = max(abs(low), abs(high)) * 0.05
        if not wide > sys.float_info.min:
            wide = 1.0
        low = low - wide
        high = high + wide
    rest = (high - low) * margin
    return AxisScale(low - rest, high + rest, begin, end)


def number_label(value: float) -> str:
    """Format a tick shortly: `200k`, `1.5M`, `0.05`."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if 10_000 <= size < 1e12 and size >= unit:
            return f"{value / unit:.3g}{name}"
    return format_number(float(f"{value:.6g}"))
