"""Random numbers of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class NoiseSource(Protocol):
    """Source of all random numbers of an objective, keyed by (seed, step, global micro-batch index, name).

    `shape` includes the batch dimension, first. Two calls with one name give the same numbers; draws do not depend on
    the order of the calls. A slice of a micro-batch gets its slice of the whole one's numbers.
    """

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw from U[0, 1), float32, on the batch's device."""
        ...

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw from N(0, 1), float32, on the batch's device."""
        ...
