"""Intervals over seeds: of paired differences between two configurations, and of a group's mean.

Two trials that differ in some fields but not in their seed draw the same samples, times and noise
at every step. Their values are a pair, and the difference of a pair varies less than the values do.
One observation here is one seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike


def student_quantile(degrees: ArrayLike, confidence: float) -> Any:
    """Return Student's t within whose negative and itself the share `confidence` lies, for each
    number of degrees.
    """
    from scipy.special import stdtrit  # takes 0.2 s, for which no training waits

    return stdtrit(degrees, (1 + confidence) / 2)


@dataclass(frozen=True)
class Interval:
    """Interval of a mean over seeds. With one value it is unbounded: one seed tells nothing of
    seeds.
    """

    mean: float
    low: float
    high: float
    num: int
    """Pairs, or values."""
    std: float
    """Sample standard deviation; NaN of one value."""
    confidence: float
    num_other: int = 0
    """Values of the second group where a difference is not one of pairs; 0 for pairs."""

    @property
    def half_width(self) -> float:
        """Distance from the mean to an end, in the metric's unit; infinite with one value."""
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """True if both ends lie on the same side of zero."""
        return self.low > 0 or self.high < 0

    def text(self, is_signed: bool = False) -> str:
        """Write mean and half width, to two digits of the latter: `0.3121 +- 0.0042`; the mean
        alone with one value.

        With `is_signed` a mean above zero has its sign, too.
        """
        sign = "+" if is_signed and self.mean > 0 else ""
        if math.isinf(self.half_width):
            return f"{sign}{self.mean:.4g}"
        half = self.half_width
        return f"{sign}{_rounded(self.mean, half)} +- {_rounded(half, half)}"

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON's types; None in place of infinite ends and of a missing
        deviation.
        """
        return {
            name: value if math.isfinite(value) else None for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class SeedBand:
    """Mean over seeds and its interval, at every place of the values. Arrays have the values' shape
    without seeds.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num: np.ndarray
    """Finite values; a mean of none is NaN, and the interval of fewer than two unbounded."""
    std: np.ndarray
    confidence: float

    def at(self, *place: int) -> Interval:
        """Return the interval at a place."""
        mean, low, high, std = (
            float(each[place]) for each in (self.mean, self.low, self.high, self.std)
        )
        return Interval(mean, low, high, int(self.num[place]), std, self.confidence)


def seed_band(values: ArrayLike, confidence: float = 0.95) -> SeedBand:
    """Return the mean over seeds and Student's t interval of it; values (num_seeds, ...), such as
    curves over steps.

    Values that are not finite are dropped. The interval of a place is its own: a curve lies within
    the whole band less often. Raises ValueError for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence:g} must lie between 0 and 1; set 0.95.")
    given = np.asarray(values, dtype=np.float64)
    is_there = np.isfinite(given)
    num = is_there.sum(axis=0)
    # Sums from the first value on: large values of small spread keep their digits.
    first = np.take_along_axis(given, is_there.argmax(axis=0)[None], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.where(is_there, given - first, 0.0)
        mean_above = above.sum(axis=0) / num
        squares = np.where(is_there, (above - mean_above) ** 2, 0.0).sum(axis=0)
        std = np.where(num > 1, np.sqrt(squares / (num - 1)), np.nan)
        mean = np.where(num > 0, first[0] + mean_above, np.nan)
        half = np.where(
            num > 1,
            student_quantile(np.maximum(num - 1, 1), confidence) * std / np.sqrt(num),
            np.inf,
        )
    return SeedBand(mean, mean - half, mean + half, num, std, confidence)


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return Student's t interval of the mean of paired differences, one a seed, of a number of
    seeds fixed beforehand.

    It holds the true mean with `confidence` if differences are Gaussian. Raises ValueError for no
    difference, for one that is not finite (drop pairs with a failed trial), and for a
    confidence outside (0, 1).
    """
    if not len(differences) or not np.isfinite(differences).all():
        raise ValueError(
            f"differences={list(differences)} must be finite, and at least one; leave out "
            "failed pairs."
        )
    return seed_band(differences, confidence).at()


def unpaired_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Return Welch's t interval (1947, Biometrika 34: 28-35) of mean(first) - mean(second), of
    groups without pairs.

    Unbounded where a group has one value. `std` is that of the difference of two single values.
    Raises ValueError for an empty group, and for a value that is not finite.
    """
    one = paired_interval(first, confidence)
    other = paired_interval(second, confidence)
    mean = one.mean - other.mean
    std = math.hypot(one.std, other.std)
    half = math.inf
    if std == 0:
        half = 0.0
    elif one.num > 1 and other.num > 1:
        share = one.std**2 / one.num
        other_share = other.std**2 / other.num
        degrees = (share + other_share) ** 2 / (
            share**2 / (one.num - 1) + other_share**2 / (other.num - 1)
        )
        half = float(student_quantile(degrees, confidence)) * math.sqrt(share + other_share)
    return Interval(mean, mean - half, mean + half, one.num, std, confidence, other.num)


def describe_difference(
    interval: Interval, configurations: tuple[str, str], mode: Literal["min", "max"], metric: str
) -> str:
    """Describe in one sentence the interval of the values of the first configuration minus those of
    the second.

    `B before A by 0.012 +- 0.004 in eval/velocity (95 %, 3 pairs)`, or the largest difference that
    was not excluded.
    """
    first, second = configurations
    if interval.num_other:
        counted = f"{interval.num} and {interval.num_other} seeds, unpaired"
    else:
        counted = f"{interval.num} pairs"
    basis = f"({interval.confidence * 100:.4g} %, {counted})"
    if math.isinf(interval.half_width):
        size = f"differ by {abs(interval.mean):.3g} in {metric} with one seed"
        return f"{first} and {second} {size}; one seed tells nothing of other seeds"
    half = _rounded(interval.half_width, interval.half_width)
    if interval.excludes_zero:
        is_first_better = (interval.mean < 0) == (mode == "min")
        better, worse = configurations if is_first_better else configurations[::-1]
        size = _rounded(abs(interval.mean), interval.half_width)
        return f"{better} before {worse} by {size} +- {half} in {metric} {basis}"
    if interval.std == 0:
        return f"{first} and {second}: {metric} is equal with every seed ({counted})"
    largest = max(-interval.low, interval.high)
    found = f"no difference larger than {_rounded(largest, largest)} in {metric} was found {basis}"
    return f"{first} and {second}: {found}"


def _rounded(value: float, scale: float) -> str:
    """Round to two significant digits of `scale`."""
    if scale == 0 or not 1e-6 < scale < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(scale)))}f}"
