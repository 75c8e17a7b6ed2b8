"""Norms by layer: those of its parameters together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ditlab.engine.update_norms import ParameterNorms


@dataclass(frozen=True)
class LayerNorms:
    """L2 norms of a layer's parameters together."""

    layer: str
    gradient: float
    """Before clipping."""
    update: float
    weight: float

    @property
    def ratio(self) -> float | None:
        """Norm of the update over that of the weights; None for weights of zero."""
        return self.update / self.weight if self.weight else None


def layers_of(norms: Mapping[str, ParameterNorms]) -> list[LayerNorms]:
    """Return norms by layer, in the order of the network: `blocks.3`, `final`, of the loss's own `objective...`."""
    groups: dict[str, list[ParameterNorms]] = {}
    for name in sorted(norms, key=_natural):
        groups.setdefault(layer_of(name), []).append(norms[name])
    return [
        LayerNorms(
            layer,
            *(
                math.sqrt(sum(getattr(each, kind) ** 2 for each in members))
                for kind in ("gradient", "update", "weight")
            ),
        )
        for layer, members in groups.items()
    ]


def layer_of(name: str) -> str:
    """Return the layer of a parameter: up to its first number, else up to its first module below the network."""
    parts = name.removeprefix("network.").split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    if number is not None:
        return ".".join(parts[: number + 1])
    return ".".join(parts[: 2 if parts[0] == "objective" else 1])


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which `blocks.10` comes behind `blocks.9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
