"""Coefficients with which kept averages add up to one of another profile (arXiv:2312.02696, appendix C.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.averages.profiles import AverageProfile, PowerProfile

EVEN_EDGES = 4096
"""Intervals of a long run on which profiles are compared; a shorter run is compared update by update."""
TINY = 1e-9
"""Coefficients below which an average is left out."""


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
    """One for each kept average; their sum is 1, so that weights that have come to rest are rebuilt exactly."""
    profile_error: float
    """Distance of the sum's profile from the wanted one, relative to the latter (in L2 over the updates)."""


def combine(kept: Sequence[KeptAverage], wanted: AverageProfile, stop: int) -> Combination:
    """Return the combination of `kept` averages for a profile that ends after `stop` updates, by least squares."""
    edges = _edges([each.updates for each in kept], stop)
    scale = 1 / np.sqrt(np.diff(edges))  # of sums over intervals, to an integral of squares
    basis = np.stack(
        [np.diff(PowerProfile(each.length).cumulative(edges, each.updates)) * scale for each in kept], axis=1
    )
    target = np.diff(wanted.cumulative(edges, stop)) * scale
    last = basis[:, -1]
    rest, *_ = np.linalg.lstsq(basis[:, :-1] - last[:, None], target - last, rcond=1e-12)
    coefficients = np.append(rest, 1 - rest.sum())
    coefficients[np.abs(coefficients) < TINY] = 0.0
    error = np.linalg.norm(basis @ coefficients - target) / np.linalg.norm(target)
    return Combination(coefficients, float(error))


def _edges(stops: Sequence[int], stop: int) -> np.ndarray:
    """Return ends of intervals of updates, whole numbers from 0 to `stop`, finer in the beginning of a long run."""
    if stop <= EVEN_EDGES:
        return np.arange(stop + 1)
    fine = np.geomspace(1, stop, EVEN_EDGES // 4)
    found = np.concatenate([np.linspace(0, stop, EVEN_EDGES + 1), fine, np.asarray(stops, dtype=float)])
    return np.unique(np.round(found).astype(np.int64))
