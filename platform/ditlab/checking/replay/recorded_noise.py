"""Keyed noise that keeps a summary of what it draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ditlab.inputs.noise import KeyedNoise

MOST_VALUES = 1
"""Values a sample of a draw that are kept as they are; of larger draws, the root mean square."""


@dataclass(frozen=True)
class Draw:
    """One draw of one sample."""

    name: str
    """Name by which the loss draws it: `time`, `noise`."""
    distribution: str
    """`uniform` or `normal`."""
    shape: tuple[int, ...]
    """Shape a sample."""
    value: float
    """The number itself, or the root mean square of a larger draw."""


@dataclass(frozen=True)
class RecordedNoise(KeyedNoise):
    """The numbers of `KeyedNoise`; each draw of a single sample goes to `record` too."""

    record: Callable[[Draw], None] = lambda draw: None

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), float32, of a shape."""
        return self._recorded("uniform", name, shape, super().uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1), float32, of a shape."""
        return self._recorded("normal", name, shape, super().normal(name, shape))

    def _recorded(self, distribution: str, name: str, shape: Sequence[int], values: Tensor) -> Tensor:
        size = values.numel()
        value = values.item() if size == MOST_VALUES else torch.sqrt(values.square().mean()).item() if size else 0.0
        self.record(Draw(name, distribution, tuple(shape[1:]), value))
        return values
