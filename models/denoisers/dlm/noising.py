"""Noise levels of tokens, and a network's loss at them.

B batch, T tokens of a sequence, N times of a sequence: 1, or its blocks in a block-causal network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denoisers.dlm.attention_masks import document_numbers
from denoisers.processes.score_entropy import LossTargets, ScoreName, TokenLosses
from denoisers.processes.uniform_graph import SigmaSchedule, corrupt


@dataclass(frozen=True)
class NoiseLevels:
    """Noise levels and the weights of their losses, (B, N) float32 each."""

    sigma: Tensor
    rate: Tensor
    """d sigma/dt."""
    weight: Tensor
    """The mean over draws of weight times loss is the mean over time of d sigma/dt times loss."""


@dataclass(frozen=True)
class TokenNoise:
    """Noise process of one model's tokens."""

    schedule: SigmaSchedule
    vocabulary: int
    block_size: int | None
    """Tokens that share a time; None: all of a sequence."""
    score: ScoreName
    document_end: int | None = None
    """Token that ends a document, where attention stays within documents; None: it crosses them."""

    def time_shape(self, x0: Tensor) -> tuple[int, int]:
        """Return the shape (B, N) of the times of tokens (B, T)."""
        return len(x0), x0.shape[1] // self.block_size if self.block_size else 1

    def at_time(self, t: Tensor, weight: Tensor | None = None) -> NoiseLevels:
        """Compute the levels at times (B, N), drawn uniformly, or such that they count by `weight` (B, N)."""
        sigma = self.schedule.sigma(t)
        rate = self.schedule.rate_at(sigma)
        return NoiseLevels(sigma, rate, rate if weight is None else rate * weight)

    def within(self, start: float, end: float, uniform: Tensor) -> NoiseLevels:
        """Draw levels between two times such that u = arctan(sqrt(sigma)) is uniform; `uniform` U[0, 1), (B, N)."""
        first, last = (math.atan(math.sqrt(self.schedule.sigma_at(t))) for t in (start, end))
        root = torch.tan(first + (last - first) * uniform)
        sigma = root.square()
        by_u = 2 * root * (1 + sigma)  # d sigma/du
        return NoiseLevels(sigma, self.schedule.rate_at(sigma), by_u * (last - first) / (end - start))

    def losses(self, network: nn.Module, x0: Tensor, levels: NoiseLevels, move: Tensor, jump: Tensor) -> TokenLosses:
        """Compute the network's losses of noised tokens x0 (B, T); move and jump U[0, 1), (B, T) each.

        `total` is the mean over tokens of the levels' weight times loss.
        """
        sigma, weight = (by_token(each, x0) for each in (levels.sigma, levels.weight))
        x = corrupt(x0, sigma, move, jump, self.vocabulary)
        targets = LossTargets(x0, sigma, weight / x0.numel(), self.score, self.schedule.sigma_min)
        return network(x, levels.sigma, targets, documents=self.documents(x0))

    def documents(self, x0: Tensor) -> Tensor | None:
        """Number the documents of clean tokens (B, T), where attention stays within them."""
        return None if self.document_end is None else document_numbers(x0, self.document_end)


def by_token(values: Tensor, x0: Tensor) -> Tensor:
    """Repeat the blocks' values (B, N) for each of the tokens x0 (B, T)."""
    return values.repeat_interleave(x0.shape[1] // values.shape[1], 1)
