"""Noise schedules of the uniform discrete process: sigma by time (Lou et al. 2024, arXiv:2310.16834, section 5.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.processes.discrete.spec import TokenNoiseSchedule


@dataclass(frozen=True)
class SigmaSchedule(ABC):
    """Noise sigma by time t, rising from sigma_min at 0 to sigma_max at 1."""

    sigma_min: float
    sigma_max: float

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Return sigma at times t in [0, 1], in t's shape."""

    @abstractmethod
    def rate_at(self, sigma: Tensor) -> Tensor:
        """Return d sigma/dt at the given sigma, in its shape."""

    @abstractmethod
    def time(self, sigma: Tensor) -> Tensor:
        """Return the time at which the noise is sigma, in its shape."""

    def rate(self, t: Tensor) -> Tensor:
        """Return d sigma/dt at times t, in t's shape."""
        return self.rate_at(self.sigma(t))

    def sigma_at(self, t: float) -> float:
        """Return sigma at one time."""
        return float(self.sigma(torch.tensor(t, dtype=torch.float64)))


class GeometricSchedule(SigmaSchedule):
    """sigma(t) = sigma_min^(1 - t) sigma_max^t."""

    @property
    def _log_span(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(t * self._log_span)

    def rate_at(self, sigma: Tensor) -> Tensor:
        return sigma * self._log_span

    def time(self, sigma: Tensor) -> Tensor:
        return (sigma / self.sigma_min).log() / self._log_span


class LogLinearSchedule(SigmaSchedule):
    """e^-sigma(t), the share of tokens that have not moved, falls linearly."""

    @property
    def _stay(self) -> tuple[float, float]:
        return math.exp(-self.sigma_min), math.exp(-self.sigma_max)

    def sigma(self, t: Tensor) -> Tensor:
        first, last = self._stay
        return -torch.log(first * (1 - t) + last * t)  # 1 - share moved would lose the digits of a small share

    def rate_at(self, sigma: Tensor) -> Tensor:
        first, last = self._stay
        return (first - last) * sigma.exp()

    def time(self, sigma: Tensor) -> Tensor:
        first, last = self._stay
        return (first - (-sigma).exp()) / (first - last)


def sigma_schedule(spec: TokenNoiseSchedule) -> SigmaSchedule:
    """Build the noise schedule of a spec."""
    schedules = {"geometric": GeometricSchedule, "loglinear": LogLinearSchedule}
    return schedules[spec.kind](spec.sigma_min, spec.sigma_max)
