"""The uniform discrete process (Austin et al. 2021, arXiv:2107.03006; Lou et al. 2024, arXiv:2310.16834, section
5.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.processes.specs import TokenNoiseSchedule


def move_probability(sigma: Tensor) -> Tensor:
    """Probability p_move that a token has jumped."""
    return -torch.expm1(-sigma)


def ratio(sigma: Tensor, vocabulary: int) -> Tensor:
    """Ratio r = q(any one other token)/q(own token), 1 - V/(e^sigma - 1 + V), with all digits at a small sigma."""
    grown = torch.expm1(sigma)
    return grown / (grown + vocabulary)


def log_ratio(sigma: Tensor, vocabulary: int) -> Tensor:
    """ln r, with all its digits where r is near 1 as well."""
    return -torch.log1p(vocabulary / torch.expm1(sigma))


def corrupt(x0: Tensor, sigma: Tensor, move: Tensor, jump: Tensor, vocabulary: int) -> Tensor:
    """Draw from q(x_t | x_0): x0 int64, sigma (broadcasts against x0), move and jump U[0, 1), all of x0's shape."""
    token = (jump * vocabulary).long().clamp(max=vocabulary - 1)  # in float32, 0.99999994 V may round to V
    return torch.where(move < move_probability(sigma), token, x0)


def transition(x: Tensor, sigma: Tensor, vocabulary: int) -> Tensor:
    """Transition probabilities to every token after sigma more of noise, (..., V), from tokens x (...); symmetric."""
    other = (move_probability(sigma) / vocabulary).expand(x.shape)[..., None]
    return other.repeat_interleave(vocabulary, -1).scatter(-1, x[..., None], 1 - (vocabulary - 1) * other)


def reverse_rate(log_score: Tensor, x: Tensor) -> Tensor:
    """Rates of the reverse process per unit of sigma, (..., V), of log scores (..., V), 0 at x (...); a row sums to
    0."""
    rate = (log_score.exp() / log_score.shape[-1]).scatter(-1, x[..., None], 0.0)
    return rate.scatter(-1, x[..., None], -rate.sum(-1, keepdim=True))


def posterior(log_score: Tensor, x: Tensor, step: Tensor) -> Tensor:
    """Probabilities of every token at noise sigma - step, (..., V), from log scores at sigma (Lou et al., theorem 4.2).

    Negative ones, of a network's inexact ratios, become 0 and the rest is normalised. log_score: (..., V), 0 at the
    token itself; x: (...); step: broadcasts against x.
    """
    vocabulary = log_score.shape[-1]
    step = step.expand(x.shape)[..., None]
    # e^step score - (e^step - 1) mean score; by what scores are above 1, as all are near 1 where a step can be large
    above = log_score.expm1()
    staggered = 1 + above + step.expm1() * (above - above.mean(-1, keepdim=True))
    probability = (staggered * transition(x, step[..., 0], vocabulary)).clamp(min=0)
    return probability / probability.sum(-1, keepdim=True)


def kl_from_uniform(sigma: float, vocabulary: int) -> float:
    """KL(q(x_t | x_0) || uniform) in nats a token, the same for every x_0; ln V less the entropy of q(x_t | x_0).

    At sigma_max it is the prior's part of a likelihood bound: 3.3246 for sigma_max = 1 and V = 50257.
    """
    other = -math.expm1(-sigma)  # V times the probability of any one other token
    own = vocabulary - (vocabulary - 1) * other
    moved = (vocabulary - 1) * other * math.log(other) if other else 0.0
    return (own * math.log(own) + moved) / vocabulary


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
