"""Intervals of 95 % of figures over held-out or drawn samples: means, ratios of sums, correlations.

They hold the truth in 95 % of repeats if samples do not depend on each other and no few of them
carry the variance, which each estimate counts in degrees of freedom:
`benchmarks/quality/coverage_by_law.py` counts how often they hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Z = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""
FEWEST_DF = 20
"""Degrees of freedom below which an interval is said to be doubtful: 30 Gaussian values have fewer
in one of 16 draws."""
LARGEST_EXPONENT = 709.0
"""Largest number whose exponential is finite."""
LARGEST_R = 1 - 1e-15
"""Largest correlation that has a Fisher's z."""
FEWEST_RESAMPLED = 20
"""Samples from which on an interval follows their skewness."""
RESAMPLES = 999
MOST_DRAWN = 2**22
"""Draws of samples that resampling holds at once: 32 MiB."""
MOST_SKEWED = 5.0
"""Farthest end of an interval, in half widths of Student's: where few samples are not all equal,
the error of some resamples is 0.
"""
DF = "_df"
"""Ending of the name of a figure's degrees of freedom."""


class Estimate(NamedTuple):
    """A figure and the ends of its interval; infinite ends where one sample, or none, tells nothing
    of others.
    """

    value: float
    low: float
    high: float
    df: float = math.inf
    """Degrees of freedom of the variance that the interval rests on; infinite where they are not
    known."""

    def named(self, name: str) -> dict[str, float]:
        """Return the figure under a name, and its ends, where both are finite, under `name_low` and
        `name_high`, the degrees of freedom under `name_df`.
        """
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return {name: self.value}
        found = {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}
        if math.isfinite(self.df):
            found[f"{name}{DF}"] = self.df
        return found

    def exp(self) -> Estimate:
        """The exponential of the figure and its ends: of mean nats a token, the perplexity."""
        return Estimate(_exp(self.value), _exp(self.low), _exp(self.high), self.df)

    def over(self, divisor: float) -> Estimate:
        """The figure and its ends in another unit, of which one has `divisor` of this one."""
        return Estimate(self.value / divisor, self.low / divisor, self.high / divisor, self.df)


def _exp(value: float) -> float:
    return math.exp(value) if value < LARGEST_EXPONENT else math.inf


def interval_ends(values: Mapping[str, float]) -> dict[str, Estimate]:
    """Return figures with their 95 % intervals by name, from figures `NAME`, `NAME_low`,
    `NAME_high` and, of those of samples, `NAME_df`.
    """
    found = {}
    for name, value in values.items():
        low = values.get(f"{name}_low")
        high = values.get(f"{name}_high")
        if low is not None and high is not None:
            found[name] = Estimate(value, low, high, values.get(f"{name}{DF}", math.inf))
    return found


def doubtful_intervals(intervals: Mapping[str, Estimate]) -> str:
    """Return a sentence that names the figures whose interval rests on fewer than FEWEST_DF degrees
    of freedom; empty where there are none.
    """
    doubtful = [
        f"{name} ({each.df:.2g})" for name, each in intervals.items() if each.df < FEWEST_DF
    ]
    if not doubtful:
        return ""
    return (
        "A few samples carry the variance of some figures, whose 95 % intervals may be too narrow "
        f"(degrees of freedom below {FEWEST_DF}): {', '.join(doubtful)}; measure more samples."
    )


def student_quantile(df: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # not at the start of a training: 0.1 s

    return float(stdtrit(df, 0.975))


def variance_df(residuals: np.ndarray) -> float:
    """Return the degrees of freedom of the variance of independent values (num,) of mean 0.

    They are 2 / (relative variance of the variance), 2 num / (kurtosis - 1), and at most num - 1,
    as of Gaussian values (Satterthwaite 1946, Biometrics Bulletin 2: 110-114).
    """
    num = len(residuals)
    squares = np.square(np.asarray(residuals, dtype=np.float64))
    spread = float(squares.var())
    if spread == 0:
        return num - 1.0
    return min(num - 1.0, 2 * num * float(squares.mean()) ** 2 / spread)


def mean_estimate(values: np.ndarray) -> Estimate:
    """Return the mean of samples' values (num,) with the interval of `ratio_estimate`."""
    return ratio_estimate(values, np.ones(len(values)))


def ratio_estimate(tops: np.ndarray, bottoms: np.ndarray) -> Estimate:
    """Return sum(tops) / sum(bottoms) over samples (num,), such as nats over tokens, with its
    bootstrap-t interval.

    The ratio's error is the mean of tops - ratio x bottoms over that of bottoms (Cochran 1977,
    Sampling techniques, eq. 6.13). Its quantiles in units of that error are those of resampled
    samples (Efron and Tibshirani 1993, An introduction to the bootstrap, ch. 12.5), which follow
    skewed values, times t of `variance_df` over t of num - 1. Below FEWEST_RESAMPLED samples they
    are Student's.
    """
    tops = np.asarray(tops, dtype=np.float64)
    bottoms = np.asarray(bottoms, dtype=np.float64)
    num = len(tops)
    total = float(bottoms.sum())
    ratio = float(tops.sum()) / total
    if num < 2:
        return Estimate(ratio, -math.inf, math.inf)
    residuals = tops - ratio * bottoms
    error = math.sqrt(float(np.square(residuals).sum()) * num / (num - 1)) / total
    if error <= 1e-14 * abs(ratio):  # all samples are equal, but for round-off
        return Estimate(ratio, ratio, ratio, num - 1.0)
    df = variance_df(residuals)
    student = student_quantile(num - 1)
    low = -student
    high = student
    if num >= FEWEST_RESAMPLED:
        low, high = _resampled_quantiles(residuals, bottoms, student)
    widened = error * student_quantile(df) / student
    return Estimate(ratio, ratio - high * widened, ratio - low * widened, df)


def _resampled_quantiles(
    residuals: np.ndarray, bottoms: np.ndarray, student: float
) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of a resampled ratio's distance from the ratio, in its
    own standard errors.

    Residuals are tops less the ratio times bottoms, so that the ratio of a resample is above the
    ratio by sum(residuals) / sum(bottoms).
    """
    num = len(residuals)
    generator = np.random.default_rng(0)
    columns = np.stack(
        [residuals, bottoms, residuals**2, residuals * bottoms, bottoms**2], 1
    )  # (num, 5)
    sums = []
    left = RESAMPLES
    while left:
        size = min(left, max(1, MOST_DRAWN // num))
        left -= size
        drawn = generator.integers(num, size=(size, num))
        drawn += num * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * num).reshape(size, num)
        sums.append(counts @ columns)
    above, total, squares, crosses, of_bottoms = np.concatenate(sums).T
    above = above / total
    variance = (squares - 2 * above * crosses + above**2 * of_bottoms) * num / (num - 1)
    errors = np.sqrt(np.maximum(variance, 0)) / total
    most = MOST_SKEWED * student
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.clip(np.nan_to_num(above / errors, posinf=most, neginf=-most), -most, most)
    low, high = np.quantile(distances, (0.025, 0.975))
    return float(low), float(high)


def share_estimate(count: int, num: int) -> Estimate:
    """Return `count` of `num` independent samples as a share, with Wilson's score interval (1927,
    Journal of the American Statistical Association 22: 209-212), also of none and of all."""
    share = count / num
    squared = Z**2 / num
    centre = (share + squared / 2) / (1 + squared)
    half = math.sqrt(squared * share * (1 - share) + squared**2 / 4) / (1 + squared)
    low = max(0.0, min(share, centre - half))
    return Estimate(share, low, min(1.0, max(share, centre + half)))


def correlation_estimate(sums: np.ndarray) -> Estimate:
    """Return Pearson's correlation of pairs (x, y), with an interval over samples that hold several
    pairs each.

    Sums are (num, 6) by sample: number of pairs, x, y, x^2, y^2, xy. The interval is that of a mean
    of the jackknife's pseudo-values of Fisher's z, each sample omitted once (Miller 1974,
    Biometrika 61: 1-15), mapped back. It takes samples for independent, pairs for nothing.
    """
    sums = np.asarray(sums, dtype=np.float64)
    total = sums.sum(0)
    z = float(_fisher_z(total))
    if len(sums) < 2:
        return Estimate(math.tanh(z), -1.0, 1.0)
    changes = (len(sums) - 1) * (z - _fisher_z(total - sums))
    mean = mean_estimate(z + changes - changes.mean())
    return Estimate(math.tanh(z), math.tanh(mean.low), math.tanh(mean.high), mean.df)


def _fisher_z(sums: np.ndarray) -> np.ndarray:
    """Fisher's z of the correlation of pairs with these sums, (..., 6)."""
    num, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    covariance = num * xy - x * y
    variances = (num * xx - x**2) * (num * yy - y**2)
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN where nothing varies
        r = covariance / np.sqrt(variances)
    found: np.ndarray = np.arctanh(np.clip(r, -LARGEST_R, LARGEST_R))
    return found
