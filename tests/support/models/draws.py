"""Random draws of tests: seeded generators, draws by row, batches against their halves, training."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator of this seed."""
    return torch.Generator().manual_seed(seed)


class RowKeyedNoise:
    """Fixed draws of rows `first`, `first` + 1, ...: each row's depend on its number and the name
    alone.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._seeded = torch.Generator()

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._by_row(torch.rand, name, shape)

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._by_row(torch.randn, name, shape)

    def _by_row(self, draw: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        rows = []
        for row in range(self.first, self.first + shape[0]):
            key = hashlib.sha256(f"{name}/{row}".encode()).digest()
            generator = self._seeded.manual_seed(int.from_bytes(key[:7], "big"))
            rows.append(draw(tuple(shape[1:]), generator=generator))
        return torch.stack(rows)


def check_halves(
    measure: Callable[[slice, RowKeyedNoise], Mapping[str, Any]], num: int, rtol: float = 1e-7
) -> None:
    """Assert that what is measured of rows 0 .. num - 1 is the mean of that of their two halves."""
    half = num // 2
    whole, first, second = (
        measure(rows, RowKeyedNoise(rows.start))
        for rows in (slice(0, num), slice(0, half), slice(half, num))
    )
    for name in whole:
        assert_close((first[name] + second[name]) / 2, whole[name], rtol=rtol, atol=1e-7)


def train(
    network: nn.Module, objective: Any, batch: Any, noise: Callable, steps: int, rate: float
) -> None:
    """Train by Adam on one batch, under the noise of each step."""
    own = [] if objective.modules is None else objective.modules.parameters()
    adam = torch.optim.Adam([*network.parameters(), *own], lr=rate, fused=True)
    for step in range(steps):
        losses = objective.loss(network, batch, noise(step))
        adam.zero_grad()
        sum(objective.weights[name] * value for name, value in losses.items()).backward()
        adam.step()
