"""Score entropy of scores that depend on token frequencies alone: closed forms, in nats a token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from denoisers.processes.discrete.schedule import SigmaSchedule
from denoisers.processes.discrete.uniform_graph import kl_from_uniform


@dataclass(frozen=True)
class KnownScores:
    """The true scores of text whose tokens are drawn independently from `probabilities`, on another text.

    Two texts become more alike as noise grows: their KL falls, per unit of sigma, by the loss (the chain rule of
    `objective`, from any sigma on). With uniform probabilities these are the all-zero log scores of an untrained
    network.
    """

    probabilities: np.ndarray
    """(V,) float64, none of them 0."""
    frequencies: np.ndarray
    """(V,) float64: the tokens' shares of the text that is evaluated."""

    def kl(self, sigma: float) -> float:
        """Mean over the text's tokens x0 of KL(q_sigma(x | x0) || q_sigma(x)), q_sigma(x) from `probabilities`."""
        vocabulary = len(self.probabilities)
        stays, spread = math.exp(-sigma), -math.expm1(-sigma) / vocabulary
        entropy = math.log(vocabulary) - kl_from_uniform(sigma, vocabulary)
        cross = -(stays * self.frequencies + spread) @ np.log(stays * self.probabilities + spread)
        return float(cross) - entropy

    def losses(self, schedule: SigmaSchedule, num: int) -> tuple[float, ...]:
        """Integrals of the loss over sigma, by `num` equal parts of t."""
        kl = [self.kl(sigma) for sigma in noise_levels(schedule, num)]
        return tuple(low - high for low, high in pairwise(kl))


def noise_levels(schedule: SigmaSchedule, num: int) -> list[float]:
    """Sigmas at t = 0, 1/num, ..., 1."""
    return [schedule.sigma_at(part / num) for part in range(num + 1)]
