"""A family's network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn


class Network(Protocol):
    """The three methods that a family's network, an `nn.Module`, has beside a module's own."""

    def components(self) -> dict[str, Sequence[nn.Module]]:
        """Return named groups of submodules that together own every parameter exactly once: a parameter count's
        rows."""
        ...

    def checkpointed_modules(self) -> Sequence[nn.Module]:
        """Return the modules whose activations are recomputed in the backward pass under activation checkpointing."""
        ...

    def compiled_modules(self) -> Mapping[str, Sequence[nn.Module]]:
        """Return the modules that `engine.compile` compiles, by block kind.

        Modules of a kind share one graph: they are of one class, differ in the values of their weights alone, and take
        the same inputs, whose sizes may vary.
        """
        ...
