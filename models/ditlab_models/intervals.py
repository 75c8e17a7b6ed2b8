"""Intervals of 95 % of figures over held-out or drawn samples: means, ratios of sums, correlations.

They hold the truth in 95 % of repeats if samples do not depend on each other and are many enough
for a mean of them to be Gaussian: `benchmarks/quality/text_coverage.py` counts how often.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

Z = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


class Estimate(NamedTuple):
    """A figure and the ends of its interval; infinite ends where one sample, or none, tells nothing
    of others.
    """

    value: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Return the figure under a name, and its ends, where both are finite, under `name_low` and
        `name_high`.
        """
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return {name: self.value}
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def exp(self) -> Estimate:
        """The exponential of the figure and its ends: of mean nats a token, the perplexity."""
        return Estimate(*(math.exp(each) if each < 709 else math.inf for each in self))


def mean_estimate(values: np.ndarray) -> Estimate:
    """Return the mean of samples' values (num,) with Student's t interval."""
    return ratio_estimate(values, np.ones(len(values)))


def ratio_estimate(tops: np.ndarray, bottoms: np.ndarray) -> Estimate:
    """Return sum(tops) / sum(bottoms) over samples (num,), such as nats over tokens, by the delta
    method.

    The ratio's error is the mean of tops - ratio x bottoms over that of bottoms (Cochran 1977,
    Sampling techniques, eq. 6.13); of equal bottoms it is Student's t interval of a mean.
    """
    num = len(tops)
    total = float(np.sum(bottoms, dtype=np.float64))
    ratio = float(np.sum(tops, dtype=np.float64)) / total
    if num < 2:
        return Estimate(ratio, -math.inf, math.inf)
    from scipy.special import stdtrit  # not at the start of a training: 0.1 s

    residuals = tops - ratio * bottoms
    error = math.sqrt(float(np.square(residuals).sum()) * num / (num - 1)) / total
    half = float(stdtrit(num - 1, 0.975)) * error
    return Estimate(ratio, ratio - half, ratio + half)


def correlation_ends(r: float, num: int) -> tuple[float, float]:
    """Return the ends of a Pearson correlation's interval by Fisher's z, -1 and 1 of fewer than
    four pairs, which are taken to be independent and bivariate normal."""
    if num < 4:
        return -1.0, 1.0
    z = math.atanh(min(max(r, -1 + 1e-15), 1 - 1e-15))
    half = Z / math.sqrt(num - 3)
    return math.tanh(z - half), math.tanh(z + half)
