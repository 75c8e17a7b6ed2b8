"""Noised sequences as a network was trained to see them, for figures.

L tokens of a sequence, N segments with a noise level of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.dlm.network import DLM
from denoisers.processes.discrete.schedule import SigmaSchedule
from denoisers.processes.discrete.uniform_graph import corrupt


@dataclass(frozen=True)
class NoisedSequence:
    """One noised sequence."""

    x0: Tensor
    """(1, L)."""
    x: Tensor
    """(1, L)."""
    sigma: Tensor
    """(1, N)."""
    first: int
    """First token with the noise level in question; those before are context."""


def noise_sequence(
    network: DLM, x0: Tensor, sigma: float, schedule: SigmaSchedule, generator: torch.Generator
) -> NoisedSequence:
    """Noise a sequence (1, L): all of it, or under a block-causal network its last block, behind clean ones."""
    block = network.spec.block_size
    move, jump = torch.rand(2, *x0.shape, generator=generator, device=generator.device).to(x0.device)
    if block is None or block >= x0.shape[1]:
        levels = torch.full((1, 1), sigma, device=x0.device)
        return NoisedSequence(x0, corrupt(x0, levels, move, jump, network.spec.vocabulary), levels, 0)
    first = x0.shape[1] - block
    levels = torch.full((1, x0.shape[1] // block), schedule.sigma_min, device=x0.device)
    levels[:, -1] = sigma
    noised = corrupt(x0, levels[:, -1:], move, jump, network.spec.vocabulary)
    return NoisedSequence(x0, torch.cat((x0[:, :first], noised[:, first:]), dim=1), levels, first)
