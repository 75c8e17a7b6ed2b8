"""The figure of a benchmark whose sides took turns: the median of the rounds' ratios, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the median lies with `confidence`, whatever the distribution.

    Each value is below the median as a coin falls (David and Nagaraja 2003, Order Statistics, section 7.1); the whole
    range where there are too few for that confidence. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no rounds were measured; --rounds must be at least 1")
    ordered, num = sorted(values), len(values)
    tail, left = 0.0, 0
    for below in range(num // 2):
        tail += math.comb(num, below) / 2**num
        if 2 * tail > 1 - confidence:
            break
        left = below
    return ordered[left], ordered[num - 1 - left]


def describe_ratios(ratios: Sequence[float]) -> str:
    """Describe rounds: `ratio 1.013 (median of 20 rounds; 95% interval 1.004 to 1.021)`; fewer than 6 have a range."""
    low, high = median_interval(ratios)
    kind = "95% interval" if len(ratios) >= 6 else "range"  # all of 5 values hold the median with 94%
    middle = statistics.median(ratios)
    return f"ratio {middle:.3f} (median of {len(ratios)} rounds; {kind} {low:.3f} to {high:.3f})"
