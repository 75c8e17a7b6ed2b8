"""Profiles of averages of weights over the updates of a run (Karras et al. 2024, arXiv:2312.02696, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np


class AverageProfile(Protocol):
    """Weight of each update's result in an average."""

    @property
    def label(self) -> str:
        """Short name for tables and messages: `0.1`, `decay=0.999`."""
        ...

    def cumulative(self, edges: np.ndarray, stop: int) -> np.ndarray:
        """Return the weight of all updates up to each of `edges` (whole numbers, from 0) in the average after `stop`.

        0 at 0, and 1 from `stop` on.
        """
        ...


@dataclass(frozen=True)
class PowerProfile:
    """Power-function profile: the weight of update k is that of t^gamma between k - 1 and k.

    The recursion average = beta_k average + (1 - beta_k) weights with beta_k = (1 - 1/k)^(gamma + 1) gives these
    weights, (k^(gamma+1) - (k-1)^(gamma+1)) / stop^(gamma+1), whose sum is 1.
    """

    length: float
    """Relative width `sigma_rel`: the profile's standard deviation as a fraction of the updates so far."""

    @property
    def label(self) -> str:
        """The length."""
        return f"{self.length:g}"

    @cached_property
    def gamma(self) -> float:
        """Exponent of the profile: the largest root of the cubic that the width gives (appendix C.2)."""
        return exponent_of(self.length)

    def cumulative(self, edges: np.ndarray, stop: int) -> np.ndarray:
        """Return the weight of all updates up to each edge."""
        found: np.ndarray = (np.minimum(edges, stop) / stop) ** (self.gamma + 1)
        return found


@dataclass(frozen=True)
class ExponentialProfile:
    """Profile of `training.ema`: decay min(decay, (1 + n) / (10 + n)) at update n (from 0)."""

    decay: float

    @property
    def label(self) -> str:
        """The decay."""
        return f"decay={self.decay:g}"

    def cumulative(self, edges: np.ndarray, stop: int) -> np.ndarray:
        """Return the weight of all updates up to each edge; what the initial weights have left is given to the rest."""
        number = np.arange(stop)
        logarithms = np.append(0.0, np.cumsum(np.log(np.minimum(self.decay, (1 + number) / (10 + number)))))
        kept = np.exp(logarithms[-1] - logarithms[np.minimum(edges, stop)])
        start = math.exp(logarithms[-1])
        return (kept - start) / (1 - start)


def width_of(exponent: float) -> float:
    """Return the relative width of the profile t^exponent (section 3.1)."""
    return math.sqrt(exponent + 1) / ((exponent + 2) * math.sqrt(exponent + 3))


def exponent_of(width: float) -> float:
    """Return the exponent of the profile of a relative width."""
    inverse = width**-2
    return float(np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max())
