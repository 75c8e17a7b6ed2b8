"""Text block by block, each block given the finished ones (Arriola et al. 2025, arXiv:2503.09573, section 3).

B batch, L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from denoisers.dlm.prompts import Clamp
from denoisers.dlm.reverse_process import Predict, ReverseStep, constant_sigma, denoise
from denoisers.layers.kv_cache import KVCache
from denoisers.processes.sample_draws import SampleDraws

BlockCallback = Callable[[Tensor, float, int], None]
"""Called after each denoising step with all tokens (B, L), the active block's sigma, and that block's end."""


@dataclass(frozen=True)
class BlockSampler:
    """Denoising of one block after another; finished blocks are clean, at noise `sigma_min`."""

    steps: Sequence[ReverseStep]
    """Denoising steps of each block."""
    block_size: int
    depth: int
    """Blocks of the network."""
    sigma_min: float
    cached: bool
    """True if keys and values of finished blocks are kept, not computed again at every step."""

    def num_steps(self, clamp: Clamp) -> int:
        """Number of denoising steps over all blocks that are not wholly clamped."""
        firsts = range(0, clamp.mask.shape[1], self.block_size)
        return len(self.steps) * sum(not clamp.part(first, first + self.block_size).whole for first in firsts)

    def sample(
        self,
        network: nn.Module,
        x: Tensor,
        clamp: Clamp,
        draws: SampleDraws,
        record: BlockCallback,
    ) -> Tensor:
        """Denoise tokens (B, L) around clamped ones. A wholly clamped block is only added to the cache."""
        length = x.shape[1]
        cache = KVCache(self.depth, length)
        for first in range(0, length, self.block_size):
            end = first + self.block_size
            before, behind, block_clamp = x[:, :first], x[:, end:], clamp.part(first, end)
            block = x[:, first:end]
            if not block_clamp.whole:
                predict = self._predict(network, before, cache)
                record_whole = partial(_record_whole, record, before, behind)
                block = denoise(predict, block, self.steps, block_clamp, draws, record_whole)
                x = torch.cat((before, block, behind), dim=1)
            if self.cached and end < length:
                self._commit(network, block, cache)
        return x

    def _predict(self, network: nn.Module, before: Tensor, cache: KVCache) -> Predict:
        """Evaluation of a block behind finished blocks `before` (B, ...)."""
        num = len(before)
        if self.cached:
            return lambda block, sigma: network(block, constant_sigma(network, num, sigma), cache=cache)

        def predict(block: Tensor, sigma: float) -> Tensor:
            fresh = KVCache(self.depth, before.shape[1] + self.block_size)
            if before.shape[1]:
                self._commit(network, before, fresh)
            output: Tensor = network(block, constant_sigma(network, num, sigma), cache=fresh)
            return output

        return predict

    def _commit(self, network: nn.Module, finished: Tensor, cache: KVCache) -> None:
        """Add keys and values of finished tokens to the cache."""
        network(finished, constant_sigma(network, len(finished), self.sigma_min), cache=cache, commit=True)


def _record_whole(record: BlockCallback, before: Tensor, behind: Tensor, block: Tensor, sigma: float) -> None:
    record(torch.cat((before, block, behind), dim=1), sigma, before.shape[1] + block.shape[1])
