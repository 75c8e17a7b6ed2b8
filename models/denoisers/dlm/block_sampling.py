"""Text a block after another, each given finished ones (Arriola et al. 2025, arXiv:2503.09573, section 3).

B batch, L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from denoisers.dlm.prompts import Given
from denoisers.dlm.reverse_process import Ask, Pass, take_noise_away, told
from denoisers.layers.kv_cache import KVCache
from denoisers.processes.sample_draws import SampleDraws

RecordBlock = Callable[[Tensor, float, int], None]
"""Is told all tokens (B, L) after a pass, the noise then left in the block at work, and where that block ends."""


@dataclass(frozen=True)
class BlockWriter:
    """Takes the noise of one block away after another; finished blocks are clean, at noise `sigma_min`."""

    passes: Sequence[Pass]
    """Of each block."""
    block_size: int
    depth: int
    """Of the network."""
    sigma_min: float
    cached: bool
    """Whether keys and values of finished blocks are kept, or computed anew at every pass."""

    def num_passes(self, given: Given) -> int:
        """Passes over all blocks that are not given whole."""
        firsts = range(0, given.mask.shape[1], self.block_size)
        return len(self.passes) * sum(not given.part(first, first + self.block_size).whole for first in firsts)

    def write(
        self,
        network: nn.Module,
        x: Tensor,
        given: Given,
        draws: SampleDraws,
        record: RecordBlock,
    ) -> Tensor:
        """Tokens (B, L) from noise around given ones. A block given whole is only remembered."""
        length = x.shape[1]
        cache = KVCache(self.depth, length)
        for first in range(0, length, self.block_size):
            end = first + self.block_size
            before, behind, fixed = x[:, :first], x[:, end:], given.part(first, end)
            block = x[:, first:end]
            if not fixed.whole:
                ask = self._ask(network, before, cache)
                record_whole = partial(_record_whole, record, before, behind)
                block = take_noise_away(ask, block, self.passes, fixed, draws, record_whole)
                x = torch.cat((before, block, behind), dim=1)
            if self.cached and end < length:
                self._remember(network, block, cache)
        return x

    def _ask(self, network: nn.Module, before: Tensor, cache: KVCache) -> Ask:
        """Passes over a block behind finished blocks `before` (B, ...)."""
        num = len(before)
        if self.cached:
            return lambda block, sigma: network(block, told(network, num, sigma), cache=cache)

        def ask(block: Tensor, sigma: float) -> Tensor:
            fresh = KVCache(self.depth, before.shape[1] + self.block_size)
            if before.shape[1]:
                self._remember(network, before, fresh)
            output: Tensor = network(block, told(network, num, sigma), cache=fresh)
            return output

        return ask

    def _remember(self, network: nn.Module, finished: Tensor, cache: KVCache) -> None:
        network(finished, told(network, len(finished), self.sigma_min), cache=cache, commit=True)


def _record_whole(record: RecordBlock, before: Tensor, behind: Tensor, block: Tensor, noise: float) -> None:
    record(torch.cat((before, block, behind), dim=1), noise, before.shape[1] + block.shape[1])
