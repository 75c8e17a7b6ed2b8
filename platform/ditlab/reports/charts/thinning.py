"""Thinning of long curves: medians and ranges of stretches, so that a million points draw as two hundred."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_PLAIN = 160
"""Points of a curve that is drawn as it is."""
MOST_STRETCHES = 200
_FEWEST_IN_STRETCH = 4
_MOST_BAD = 100
_LARGEST = 1e300
"""Values beyond are drawn at it: differences of any two are finite."""


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
    """Points that were NaN or infinite, which are left out."""
    bad_steps: np.ndarray
    """Steps of the first of those."""
    last: float
    """The last finite point itself, not its stretch's median; NaN where there is none."""

    @property
    def is_thinned(self) -> bool:
        """True if a value is the median of several points."""
        return self.num_points > len(self.values)


def thin(steps: np.ndarray, values: np.ndarray) -> ThinCurve:
    """Thin a curve to at most `MOST_STRETCHES` stretches of equally many points; no peak is lost from their ranges."""
    if len(steps) and (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    is_finite = np.isfinite(values)
    bad = steps[~is_finite]
    steps, values = steps[is_finite], np.clip(values[is_finite], -_LARGEST, _LARGEST)
    num = len(values)
    last = float(values[-1]) if num else float("nan")
    if num <= MOST_PLAIN:
        return ThinCurve(steps, values, values, values, num, len(bad), bad[:_MOST_BAD], last)
    length = max(_FEWEST_IN_STRETCH, -(-num // MOST_STRETCHES))
    num_whole = num // length
    whole = values[: num_whole * length].reshape(num_whole, length)
    rest = [values[num_whole * length :]] if num % length else []
    middles = np.arange(0, num, length) + length // 2
    middles[0], middles[-1] = 0, num - 1  # the curve reaches from its first step to its last
    return ThinCurve(
        steps[middles],
        np.array([*np.median(whole, axis=1), *(np.median(part) for part in rest)]),
        np.array([*whole.min(axis=1), *(part.min() for part in rest)]),
        np.array([*whole.max(axis=1), *(part.max() for part in rest)]),
        num,
        len(bad),
        bad[:_MOST_BAD],
        last,
    )
