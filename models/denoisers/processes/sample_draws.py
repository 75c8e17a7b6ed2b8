"""Random draws by sample, each from a generator of its own, so that none depends on the number of samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw_seeds(num: int, generator: torch.Generator) -> list[int]:
    """Draw a seed for each of `num` samples, in turn: integers in [0, 2^62)."""
    return [int(torch.randint(2**62, (), generator=generator, device=generator.device)) for _ in range(num)]


def seeded_normal(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw N(0, 1), (number of seeds, *shape) float32 on the CPU: a seed gives the same numbers on every machine."""
    return torch.stack([torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)) for seed in seeds])


class SampleDraws:
    """Draws for `num` samples, whose generators are seeded in turn from `generator`, on its device."""

    def __init__(self, num: int, generator: torch.Generator, device: torch.device) -> None:
        self._device = device
        self._generators = [torch.Generator(generator.device).manual_seed(s) for s in draw_seeds(num, generator)]

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw U[0, 1), (num, ...): `shape` includes `num`, first. float32 has 2^24 values, float64 2^53."""
        draws = [torch.rand(shape[1:], generator=g, device=g.device, dtype=dtype) for g in self._generators]
        return self._stack(draws)

    def normal(self, like: Tensor) -> Tensor:
        """Draw N(0, 1) in the shape of `like` (num, ...), float32."""
        return self._stack([torch.randn(like.shape[1:], generator=g, device=g.device) for g in self._generators])

    def _stack(self, draws: list[Tensor]) -> Tensor:
        return torch.stack(draws).to(self._device)
