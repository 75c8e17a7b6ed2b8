"""Charts of pages: curves as SVG, legible in light and dark, with values to read by hand or key."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ditlab.reports.curves import ThinCurve, thin
from ditlab.reports.formatting import format_number, shorten

WIDTH, HEIGHT = 420, 250
"""Size of a chart in its own units; a page shows it at 350 to 580 pixels of width."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 410, 10, 222
_LOG_RATIO = 20.0
"""Ratio of the largest to the smallest value from which a scale is logarithmic."""
_MOST_MARKERS = 40
_MOST_LABEL = 60
_NUM_TICKS = 6


@dataclass(frozen=True, eq=False)
class CurvePoints:
    """A curve before it is drawn."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    role: str = "train"
    """`train`, `held-out` or `other`, which decides the colour."""


@dataclass(frozen=True)
class DrawnCurve:
    """A curve as SVG."""

    name: str
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
    """Name of its elements in the page: letters, digits and `-`; see `with_key`."""
    title: str
    note: str
    alternative: str
    x_ticks: Sequence[AxisTick]
    y_ticks: Sequence[AxisTick]
    curves: Sequence[DrawnCurve]
    bad_marks: Sequence[float]
    """Places of steps with NaN or infinite values, at the bottom."""
    data: Mapping[str, Any]
    """Values and scales, for a page's script."""
    x_label: str = "step"

    @property
    def is_thinned(self) -> bool:
        """True if a curve's point stands for several."""
        return any(curve.band for curve in self.curves)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, right, top and bottom of the plot in the chart's units."""
        return _LEFT, _RIGHT, _TOP, _BOTTOM

    def with_key(self, key: str) -> Chart:
        """The chart under another key, which no other on its page has."""
        return replace(self, key=key)


def draw_chart(title: str, curves: Sequence[CurvePoints]) -> Chart | None:
    """Draw curves over their common steps; None where none has a finite value."""
    thinned = [(curve, thin(np.asarray(curve.steps), np.asarray(curve.values, dtype=float))) for curve in curves]
    drawn = [(curve, points) for curve, points in thinned if points.num_points]
    if not drawn:
        return None
    x = _x_scale([points for _, points in thinned])
    y = _y_scale([points for _, points in drawn])
    bad = np.unique(np.concatenate([points.bad_steps for _, points in thinned]))
    return Chart(
        key="chart",
        title=shorten(title, 2 * _MOST_LABEL),
        note=_note(y, [points for _, points in thinned]),
        alternative=_alternative(title, drawn),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        curves=[_draw(curve, points, x, y) for curve, points in drawn],
        bad_marks=[round(float(place), 1) for place in x.places(bad)],
        data=_data(drawn, x, y),
    )


def _x_scale(curves: Sequence[ThinCurve]) -> AxisScale:
    ends = [float(steps[place]) for points in curves for steps in (points.steps, points.bad_steps) if len(steps)
            for place in (0, -1)]  # fmt: skip
    low, high = min(ends), max(ends)
    return AxisScale(low, high, _LEFT, _RIGHT) if high > low else linear_scale(low, high, _LEFT, _RIGHT)


def _y_scale(curves: Sequence[ThinCurve]) -> AxisScale:
    """Range of all medians, and of all but the wildest hundredth of what they stand for."""
    values = np.concatenate([points.values for points in curves])
    wide = [end for points in curves for end in (np.quantile(points.low, 0.01), np.quantile(points.high, 0.99))]
    low, high = float(min(values.min(), *wide)), float(max(values.max(), *wide))
    if low > 0 and high / low > _LOG_RATIO:
        return log_scale(low, high, _BOTTOM, _TOP)
    if not np.isfinite(high - low):  # values near the largest float
        low, high = low / 4, high / 4
    return linear_scale(low, high, _BOTTOM, _TOP, margin=0.05)


def _draw(curve: CurvePoints, points: ThinCurve, x: AxisScale, y: AxisScale) -> DrawnCurve:
    across, up = x.places(points.steps), _inside(y.places(points.values))
    band = ""
    if points.is_thinned:
        high, low = _inside(y.places(points.high)), _inside(y.places(points.low))
        band = f"{_line(across, high)}L{_line(across[::-1], low[::-1])[1:]}Z"
    markers = list(zip(_rounded(across), _rounded(up), strict=True)) if len(across) <= _MOST_MARKERS else []
    return DrawnCurve(shorten(curve.name, _MOST_LABEL), curve.role, _line(across, up), band, markers)


def _inside(places: np.ndarray) -> np.ndarray:
    return np.clip(places, _TOP - 4, _BOTTOM + 4)  # beyond the axes, where the plot's edge cuts them off


def _rounded(places: np.ndarray) -> list[float]:
    return [round(place, 1) for place in places.tolist()]


def _line(across: np.ndarray, up: np.ndarray) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in zip(_rounded(across), _rounded(up), strict=True))


def _note(y: AxisScale, curves: Sequence[ThinCurve]) -> str:
    notes = ["log scale"] if y.is_log else []
    if num_bad := max(points.num_bad for points in curves):
        notes.append(f"x: NaN or infinity in {num_bad:,} step{'s' if num_bad > 1 else ''}")
    return "; ".join(notes)


def _alternative(title: str, drawn: Sequence[tuple[CurvePoints, ThinCurve]]) -> str:
    parts = []
    for curve, points in drawn:
        first, last = format_number(float(points.values[0])), format_number(points.last)
        lowest, highest = format_number(float(points.low.min())), format_number(float(points.high.max()))
        parts.append(
            f"{shorten(curve.name, _MOST_LABEL)} from {first} at step {int(points.steps[0]):,} to {last} at step "
            f"{int(points.steps[-1]):,}, lowest {lowest}, highest {highest}"
        )
    return f"{shorten(title, _MOST_LABEL)} over steps: {'; '.join(parts)}."


def _data(drawn: Sequence[tuple[CurvePoints, ThinCurve]], x: AxisScale, y: AxisScale) -> dict[str, Any]:
    curves = [
        {
            "name": shorten(curve.name, _MOST_LABEL), "role": curve.role, "steps": points.steps.tolist(),
            "values": _short(points.values), "last": float(f"{points.last:.5g}"),
            **({"low": _short(points.low), "high": _short(points.high)} if points.is_thinned else {}),
        }
        for curve, points in drawn
    ]  # fmt: skip
    scales = {name: [scale.low, scale.high, scale.begin, scale.end] for name, scale in (("x", x), ("y", y))}
    return {"curves": curves, **scales, "log": y.is_log}


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


@dataclass(frozen=True)
class AxisTick:
    """A labelled place on an axis."""

    place: float
    label: str


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
        low, high, at = self.low, self.high, np.asarray(values, dtype=float)
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), np.log10(np.maximum(at, 1e-300))
        return self.begin + (self.end - self.begin) * ((at - low) / (high - low))

    def ticks(self) -> list[AxisTick]:
        """Ticks at round numbers."""
        values = self._decades() if self.is_log else _round_numbers(self.low, self.high)
        return [AxisTick(float(self.places(np.array(value))), number_label(value)) for value in values]

    def _decades(self) -> list[float]:
        lowest, highest = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, -(-(highest - lowest) // _NUM_TICKS))
        found = [10.0**power for power in range(lowest, highest + 1, every)]
        if highest - lowest <= 2:
            found = [each * factor for each in found for factor in (1, 2, 5)]
        return [value for value in found if self.low <= value <= self.high]


def linear_scale(low: float, high: float, begin: float, end: float, margin: float = 0.0) -> AxisScale:
    """Make a linear scale; a range of one value is widened, and `margin` (a fraction) is left on both sides."""
    if high - low <= max(1e-9 * max(abs(low), abs(high)), sys.float_info.min):  # equal, but for rounding
        wide = max(abs(low), abs(high)) * 0.05
        wide = wide if wide > sys.float_info.min else 1.0
        low, high = low - wide, high + wide
    rest = (high - low) * margin
    return AxisScale(low - rest, high + rest, begin, end)


def log_scale(low: float, high: float, begin: float, end: float) -> AxisScale:
    """Make a logarithmic scale over positive values, a little wider than they are."""
    return AxisScale(low / 1.1, high * 1.1, begin, end, is_log=True)


def number_label(value: float) -> str:
    """Format a tick shortly: `200k`, `1.5M`, `0.05`."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if 10_000 <= size < 1e12 and size >= unit:
            return f"{value / unit:.3g}{name}"
    return format_number(float(f"{value:.6g}"))


def _round_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values."""
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, min(last, first + 20) + 1)]
