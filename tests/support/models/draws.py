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


class KeyedNoise:
    """A noise source: numbers depend on the seed and the name alone, on every device."""

    def __init__(self, seed: int = 0, device: str = "cpu") -> None:
        self.seed = seed
        self.device = device
        self.names: list[str] = []

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.rand(tuple(shape), generator=self._generator(name)).to(self.device)

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=self._generator(name)).to(self.device)

    def _generator(self, name: str) -> torch.Generator:
        self.names.append(name)
        key = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return seeded(int.from_bytes(key[:7], "big"))


def perturb(network: Any, std: float = 0.05) -> Any:
    """The network, every parameter moved off its initial value, zeros included."""
    generator = seeded(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator).to(parameter))
    return network


class Answering(nn.Module):
    """A network whose output is a function of its inputs, which it records."""

    def __init__(self, answer: Callable[..., Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.answer = answer
        self.anchor = nn.Parameter(torch.zeros((), dtype=dtype))
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        self.calls.append(inputs)
        return self.answer(*inputs, **named) + self.anchor


class RowKeyedNoise:
    """Fixed draws of rows `first`, `first` + 1, ...: each row's depend on its number and the name
    alone.
    """

    def __init__(self, first: int) -> None:
        self.first = first

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.stack([row.uniform(name, shape[1:]) for row in self._rows(shape[0])])

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.stack([row.normal(name, shape[1:]) for row in self._rows(shape[0])])

    def _rows(self, num: int) -> list[KeyedNoise]:
        return [KeyedNoise(row) for row in range(self.first, self.first + num)]


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
