"""Averages of weights over training: their profiles, their names in a checkpoint, and how kept ones
are combined.

Power-function profiles are those of Karras et al. 2024 (arXiv:2312.02696).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

START = "averages.start"
"""Scalar of a state: updates that were applied before the averages began."""
FOLDER = "averages"
"""Folder of the snapshots in that of a run's checkpoints."""
UPDATES = "adam_step"
"""Scalar of a state: updates that were applied."""
_PREFIX = "power_"
GROWTH = 5
"""Early snapshots are at most a fifth of their step apart."""
EARLIEST = 128
"""No snapshot lies before this fraction of the run: at length 0.25 that leaves 1 / 4,000 of the
weight to what is before."""
EVEN_EDGES = 4096
"""Intervals of a long run on which profiles are compared; a shorter run is compared update by
update.
"""
TINY = 1e-9
"""Coefficients below which an average is dropped."""


@dataclass(frozen=True)
class PowerProfile:
    """Power-function profile: the weight of update k is that of t^gamma between k - 1 and k.

    The recursion average = beta_k average + (1 - beta_k) weights with beta_k = (1 - 1/k)^(gamma +
    1) gives these weights, (k^(gamma+1) - (k-1)^(gamma+1)) / stop^(gamma+1), whose sum is 1.
    """

    length: float
    """Relative width `sigma_rel`: the profile's standard deviation as a fraction of the updates so
    far.
    """

    @property
    def label(self) -> str:
        """Short name for tables and messages: `0.1`."""
        return f"{self.length:g}"

    @cached_property
    def gamma(self) -> float:
        """Exponent of the profile: the largest root of the cubic that the width gives (appendix
        C.2).
        """
        inverse = self.length**-2
        return float(np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max())

    def cumulative(self, edges: np.ndarray, stop: int) -> np.ndarray:
        """Return the weight of all updates up to each of `edges` (whole numbers, from 0), which is
        1 from `stop` on.
        """
        found: np.ndarray = (np.minimum(edges, stop) / stop) ** (self.gamma + 1)
        return found


@dataclass(frozen=True)
class ExponentialProfile:
    """Profile of `training.ema`: decay min(decay, (1 + n) / (10 + n)) at update n (from 0)."""

    decay: float

    @property
    def label(self) -> str:
        """Short name for tables and messages: `decay=0.999`."""
        return f"decay={self.decay:g}"

    def cumulative(self, edges: np.ndarray, stop: int) -> np.ndarray:
        """Return the weight of all updates up to each of `edges`, as `PowerProfile` does; what the
        initial weights have left is given to the rest."""
        number = np.arange(stop)
        logarithms = np.append(
            0.0, np.cumsum(np.log(np.minimum(self.decay, (1 + number) / (10 + number))))
        )
        kept = np.exp(logarithms[-1] - logarithms[np.minimum(edges, stop)])
        start = math.exp(logarithms[-1])
        return (kept - start) / (1 - start)


AverageProfile = PowerProfile | ExponentialProfile
"""Weight of each update's result in an average."""


def field_of(length: float) -> str:
    """Return the name of an average among the fields of a state: `power_0.05`."""
    return f"{_PREFIX}{length:g}"


def length_of(field: str) -> float | None:
    """Return the relative length of a field that `field_of` named; None for another field."""
    if field.startswith(_PREFIX):
        with suppress(ValueError):
            return float(field.removeprefix(_PREFIX))
    return None


def snapshot_steps(first: int, total: int, snapshots: int) -> list[int]:
    """Return the steps after which averages that begin after step `first` of `total` are saved, but
    for the last one.

    Gaps are `1 / snapshots` of the steps, less in the beginning: as near to profiles as half as
    many again even ones.
    """
    length = total - first
    step = float(length)
    found = []
    while step >= max(1.0, length / EARLIEST):
        found.append(first + round(step))
        step -= max(1.0, min(length / snapshots, step / GROWTH))
    return sorted(set(found) - {total})


@dataclass(frozen=True)
class KeptAverage:
    """Average that was kept, and saved after some update."""

    length: float
    updates: int
    """Updates since the average began."""


@dataclass(frozen=True)
class Combination:
    """Sum of kept averages that is nearest to a wanted profile."""

    coefficients: np.ndarray
    """One for each kept average; their sum is 1, so that weights that have come to rest are rebuilt
    exactly.
    """
    profile_error: float
    """Distance of the sum's profile from the wanted one, relative to the latter (in L2 over the
    updates).
    """


def combine(kept: Sequence[KeptAverage], wanted: AverageProfile, stop: int) -> Combination:
    """Return the combination of `kept` averages for a profile that ends after `stop` updates, by
    least squares.
    """
    # ends of intervals of updates, whole numbers, finer in the beginning of a long run
    edges = np.arange(stop + 1)
    if stop > EVEN_EDGES:
        even = np.linspace(0, stop, EVEN_EDGES + 1)
        fine = np.geomspace(1, stop, EVEN_EDGES // 4)
        edges = np.unique(
            np.round([*even, *fine, *(each.updates for each in kept)]).astype(np.int64)
        )
    scale = 1 / np.sqrt(np.diff(edges))  # of sums over intervals, to an integral of squares
    basis = np.stack(
        [
            np.diff(PowerProfile(each.length).cumulative(edges, each.updates)) * scale
            for each in kept
        ],
        axis=1,
    )
    target = np.diff(wanted.cumulative(edges, stop)) * scale
    last = basis[:, -1]
    rest, *_ = np.linalg.lstsq(basis[:, :-1] - last[:, None], target - last, rcond=1e-12)
    coefficients = np.append(rest, 1 - rest.sum())
    coefficients[np.abs(coefficients) < TINY] = 0.0
    error = np.linalg.norm(basis @ coefficients - target) / np.linalg.norm(target)
    return Combination(coefficients, float(error))
