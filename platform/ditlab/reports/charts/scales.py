"""Scales of a chart: from values to places on the page, with round numbers as ticks."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from ditlab.reports.formatting import format_number

_NUM_TICKS = 6


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
