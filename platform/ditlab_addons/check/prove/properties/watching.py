"""Watched noise, objectives and networks: they keep what was drawn from them and what they were
called with, or give another output.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_addons.check.prove.reference import Tensors
from ditlab_models.contract import NoiseSource, Objective


class WatchedNoise:
    """A noise source that keeps what was drawn from it, by name."""

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise
        self.drawn: dict[str, Tensor] = {}
        """Draws by `uniform NAME` and `normal NAME`, on the host."""
        self.again: set[str] = set()
        """Draws that were asked for more than once."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._keep(f"uniform {name}", self._noise.uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._keep(f"normal {name}", self._noise.normal(name, shape))

    def _keep(self, name: str, values: Tensor) -> Tensor:
        if name in self.drawn:
            self.again.add(name)
        self.drawn[name] = values.detach().cpu().clone(memory_format=torch.contiguous_format)
        return values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)


class WatchedObjective:
    """An objective that keeps the batches of its held-out metrics, and what it draws for them."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.batches: list[Tensors] = []
        self.draws: list[Mapping[str, Tensor]] = []
        """Draws of each batch by name, as `WatchedNoise.drawn`."""
        self.again: set[str] = set()
        """Draws that were asked for more than once."""

    def metrics(self, network: nn.Module, batch: Tensors, noise: NoiseSource) -> dict[str, Tensor]:
        watched = WatchedNoise(noise)
        values = self._objective.metrics(network, batch, watched)
        self.batches.append(batch)
        self.draws.append(watched.drawn)
        self.again |= watched.again
        return values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)


class _CallSeen(Exception):
    """Raised in place of a network's forward pass."""


@contextmanager
def watched_calls(network: nn.Module, is_last: bool = False) -> Iterator[list[dict[str, Tensor]]]:
    """Yield a list that gets the tensors of each call of the network inside, by argument, on the
    host; with `is_last` the first call ends the block before the network computes anything."""
    seen: list[dict[str, Tensor]] = []
    signature = inspect.signature(network.forward)

    def see(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = signature.bind_partial(*inputs, **named).arguments
        seen.append(
            {name: each.detach().cpu() for name, each in given.items() if isinstance(each, Tensor)}
        )
        if is_last:
            raise _CallSeen

    with network.register_forward_pre_hook(see, with_kwargs=True), suppress(_CallSeen):
        yield seen


@contextmanager
def replaced_output(network: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the network's output, the first where it returns several, in each call inside."""

    def replace(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return change(output)
        return (change(output[0]), *output[1:])

    with network.register_forward_hook(replace):
        yield


def first_numbers(values: Tensor) -> Tensor:
    """Return the first number of each sample, (batch,) float64."""
    return values.reshape(len(values), -1)[:, 0].double()
