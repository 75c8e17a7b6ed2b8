"""Curves thinned to the median and range of equally long stretches, so that no peak is lost; running medians."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_PLAIN = 160
"""Points of a page's curve that is drawn as it is."""
MOST_STRETCHES = 200
_FEWEST_IN_STRETCH = 4
_MOST_BAD = 100
_LARGEST = 1e300
"""Values beyond are drawn at it: differences of any two are finite."""
_SMOOTHED_POINTS = 500


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


def thin(steps: np.ndarray, values: np.ndarray, most: int = MOST_STRETCHES, most_plain: int = MOST_PLAIN) -> ThinCurve:
    """Thin a curve of more than `most_plain` points to at most `most` stretches of equally many points."""
    if len(steps) and (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    is_finite = np.isfinite(values)
    bad = steps[~is_finite]
    steps, values = steps[is_finite], np.clip(values[is_finite], -_LARGEST, _LARGEST)
    num = len(values)
    last = float(values[-1]) if num else float("nan")
    if num <= most_plain:
        return ThinCurve(steps, values, values, values, num, len(bad), bad[:_MOST_BAD], last)
    length = max(_FEWEST_IN_STRETCH, -(-num // most))
    starts = np.arange(0, num, length)
    middles = starts + length // 2
    middles[0], middles[-1] = 0, num - 1  # the curve reaches from its first step to its last
    medians = np.array([np.median(values[start : start + length]) for start in starts])
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return ThinCurve(steps[middles], medians, low, high, num, len(bad), bad[:_MOST_BAD], last)


def running_median(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of at most 500 points, and the centred running medians there of `window` values, ignoring NaN.

    A median, as one spike shifts every mean that contains it; centred, so that no curve lags behind another.
    """
    num = len(values)
    middles = np.unique(np.linspace(0, num - 1, min(num, _SMOOTHED_POINTS)).round().astype(int))
    medians = []
    for middle in middles:
        near = values[max(0, middle - (window - 1) // 2) : middle + window // 2 + 1]
        near = near[~np.isnan(near)]
        medians.append(float(np.median(near)) if len(near) else np.nan)
    return middles, np.array(medians)
