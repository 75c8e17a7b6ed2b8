"""Intervals over seeds: of paired differences between two configurations, and of a group's mean.

Two trials that differ in some fields but not in their seed draw the same samples, times and noise
at every step. Their values are a pair, and the difference of a pair varies less than the values do.
One observation here is one seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

OWN_SHARE = 0.2
"""Share of the error of `simultaneous_differences` that intervals of a pair's own spread have."""


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
    num_together: int = 1
    """Intervals that all hold the truth together with this confidence; 1: this one alone."""

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


def simultaneous_differences(
    groups: Sequence[Mapping[Any, float]], confidence: float = 0.95
) -> list[Interval]:
    """Return an interval of each later group's mean minus the first one's, which all hold together
    with `confidence`, whichever group is the first: also the best by these values.

    A group is the value of each of its runs by what the run's draws depend on; runs of equal keys
    in two groups are a pair. Two groups with two pairs or more are compared by pairs, others by
    means. An interval is the narrower of two. Tukey's (1953, studentised range over all groups)
    goes by the spread that pairs share, or by its own if that is larger; it takes four fifths of
    the error. The other goes by its own spread alone, at a fifth of the error over all pairs of
    groups (Bonferroni), so that a group that diverges does not widen the others' intervals. With
    two groups it is `paired_interval` or `unpaired_interval`. Raises ValueError for an empty group,
    and for a value that is not finite.
    """
    num_groups = len(groups)
    if num_groups < 2:
        return []
    values = _table(groups)
    paired_spread, unpaired_spread = _shared_spreads(values)
    num_pairs = num_groups * (num_groups - 1) // 2
    own_level = 1 - OWN_SHARE * (1 - confidence) / num_pairs
    range_level = 1 - (1 - OWN_SHARE) * (1 - confidence)
    if num_groups == 2:
        own_level = confidence
    first = list(groups[0].values())
    band = seed_band(values[:, 1:] - values[:, :1], own_level)
    found = []
    for place, group in enumerate(groups[1:]):
        if band.num[place] > 1:
            own = band.at(place)
            spread = paired_spread
            per_variance = 1 / own.num
            error = own.std**2 / own.num
        else:
            one = list(group.values())
            own = unpaired_interval(one, first, own_level)
            spread = unpaired_spread
            per_variance = (1 / len(one) + 1 / len(first)) / 2
            error = _squared_error(one) + _squared_error(first)
        half = own.half_width
        if num_groups > 2 and spread.degrees > 0 and math.isfinite(half):
            quantile = _range_quantile(num_groups, spread.degrees, range_level)
            tukey = quantile * math.sqrt(max(spread.variance * per_variance, error) / 2)
            half = min(half, tukey) if half else tukey
        found.append(
            replace(
                own,
                low=own.mean - half,
                high=own.mean + half,
                confidence=confidence,
                num_together=num_groups - 1,
            )
        )
    return found


@dataclass(frozen=True)
class _SharedSpread:
    """Variance of the difference of two single values, which all groups share."""

    variance: float
    degrees: int


def _table(groups: Sequence[Mapping[Any, float]]) -> np.ndarray:
    """Values (num_keys, num_groups); NaN where a group has none. Raises ValueError as
    `simultaneous_differences` does.
    """
    keys = dict.fromkeys(key for group in groups for key in group)
    rows = {key: row for row, key in enumerate(keys)}
    values = np.full((len(rows), len(groups)), np.nan)
    for column, group in enumerate(groups):
        if not group or not all(map(math.isfinite, group.values())):
            raise ValueError(f"groups[{column}]={group} must have finite values, at least one.")
        for key, value in group.items():
            values[rows[key], column] = value
    return values


def _shared_spreads(values: np.ndarray) -> tuple[_SharedSpread, _SharedSpread]:
    """Spread of paired differences, and of unpaired ones, over all groups of `_table`.

    Of the mean of variances over pairs of groups, and of their median over that of chi-squared, the
    smaller: a group that diverges has a part in few pairs.
    """
    from scipy.sparse.csgraph import connected_components

    is_there = np.isfinite(values)
    known = np.where(is_there, values - np.nanmean(values, axis=0), 0.0)
    places = is_there.astype(float)
    upper = np.triu_indices(values.shape[1], 1)
    num = is_there.sum(axis=0)
    num_common = (places.T @ places)[upper]
    # of the differences of each two groups over their common keys
    sums = (known.T @ places - places.T @ known)[upper]
    squares = (known**2).T @ places + places.T @ known**2 - 2 * known.T @ known
    is_pair = num_common > 1
    degrees = num_common[is_pair] - 1
    variances = squares[upper][is_pair] - sums[is_pair] ** 2 / num_common[is_pair]
    num_parts, _ = connected_components(places.T @ places)
    num_keys = int(is_there.any(axis=1).sum())
    paired = _shared(variances / degrees, degrees, num.sum() - num.size - num_keys + num_parts)

    is_several = (num > 1)[upper[0]] & (num > 1)[upper[1]] & ~is_pair
    own = (known**2).sum(axis=0) / np.maximum(num - 1, 1)
    variances = (own[upper[0]] + own[upper[1]])[is_several]
    degrees = (num[upper[0]] + num[upper[1]] - 2)[is_several]
    return paired, _shared(variances, degrees, (num - 1).sum())


def _shared(variances: np.ndarray, degrees: np.ndarray, all_degrees: int) -> _SharedSpread:
    """Spread that variances of equal expectation share; none of them: without degrees."""
    from scipy.special import gammaincinv

    if not variances.size:
        return _SharedSpread(math.nan, 0)
    mean = float(np.average(variances, weights=degrees))
    several, places = np.unique(degrees, return_inverse=True)
    median_of_law = 2 * gammaincinv(several / 2, 0.5)  # of chi-squared
    median = float(np.median(variances * (several / median_of_law)[places]))
    return _SharedSpread(max(0.0, min(mean, median)), int(all_degrees))


def _squared_error(values: Sequence[float]) -> float:
    """Squared standard error of the mean of values; infinite of one."""
    if len(values) < 2:
        return math.inf
    return float(np.var(values, ddof=1)) / len(values)


@lru_cache(maxsize=256)
def _range_quantile(num_groups: int, degrees: int, confidence: float) -> float:
    """Quantile of the studentised range of groups, with so many degrees of freedom."""
    from scipy.stats import studentized_range  # takes seconds, for which only a report waits

    return float(studentized_range.ppf(confidence, num_groups, degrees))


def far_values(values: Sequence[float]) -> list[int]:
    """Return the places of at most a third of the values that lie far from all others; [] for
    none.

    A gap between them and the others takes more than 1.85 n^-0.6 of the range of n values, as it
    does in at most 8 % of Gaussian samples (benchmarks/sweeps/coverage.py). An interval depends on
    such values, and another sample's would often be a different one.
    """
    num = len(values)
    order = np.argsort(values, kind="stable")
    ordered = np.asarray(values, dtype=np.float64)[order]
    if num < 3 or not np.isfinite(ordered).all() or ordered[-1] == ordered[0]:
        return []
    gaps = np.diff(ordered)
    widest = int(gaps.argmax())
    if gaps[widest] <= 1.85 / num**0.6 * (ordered[-1] - ordered[0]):
        return []
    below = order[: widest + 1]
    above = order[widest + 1 :]
    fewer = min(below, above, key=len)
    if len(fewer) > num // 3:
        return []
    return sorted(fewer.tolist())


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
    level = f"{interval.confidence * 100:.4g} %"
    if interval.num_together > 1:
        level += f" for all {interval.num_together} differences together"
    basis = f"({level}, {counted})"
    if math.isinf(interval.half_width):
        size = f"differ by {abs(interval.mean):.3g} in {metric} with one seed"
        return f"{first} and {second} {size}; one seed tells nothing of other seeds"
    half = _rounded(interval.half_width, interval.half_width)
    if interval.excludes_zero:
        is_first_better = (interval.mean < 0) == (mode == "min")
        better, worse = configurations if is_first_better else configurations[::-1]
        size = _rounded(abs(interval.mean), interval.half_width)
        return f"{better} before {worse} by {size} +- {half} in {metric} {basis}"
    if interval.std == 0 and interval.mean == 0:
        return f"{first} and {second}: {metric} is equal with every seed ({counted})"
    largest = max(-interval.low, interval.high)
    found = f"no difference larger than {_rounded(largest, largest)} in {metric} was found {basis}"
    return f"{first} and {second}: {found}"


def _rounded(value: float, scale: float) -> str:
    """Round to two significant digits of `scale`."""
    if scale == 0 or not 1e-6 < scale < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(scale)))}f}"
