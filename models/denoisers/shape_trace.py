"""Shapes of a forward pass, traced on the meta device without computation or allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from denoisers.contract import ModelSpec
from denoisers.families import family_of

Shape = tuple[int, ...]


@dataclass
class ShapeRow:
    """One call of one module."""

    path: str
    """Dotted path inside the network; empty for the network itself."""
    kind: str
    """Class of the module."""
    parameters: int
    """Parameters of the module and all below it."""
    inputs: list[Shape] = field(default_factory=list)
    """Shapes of its positional tensors, batch first."""
    outputs: list[Shape] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Depth in the network's tree; 0 for the network itself."""
        return len(self.path.split(".")) if self.path else 0


def trace_shapes(model: ModelSpec, batch_size: int = 1) -> list[ShapeRow]:
    """Trace every call of a module in one forward pass, in the order in which calls begin: parents before children."""
    family = family_of(model)
    with torch.device("meta"):
        network = family.build_network(model)
    assert isinstance(network, nn.Module)
    rows: list[ShapeRow] = []
    handles = [handle for path, module in network.named_modules() for handle in _trace(path, module, rows)]
    with torch.no_grad():
        network(*family.example_inputs(model, batch_size, device="meta"))
    for handle in handles:
        handle.remove()
    return rows


def _trace(path: str, module: nn.Module, rows: list[ShapeRow]) -> list[RemovableHandle]:
    parameters = sum(parameter.numel() for parameter in module.parameters())
    open_rows: list[ShapeRow] = []

    def begin(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        row = ShapeRow(path, type(module).__name__, parameters, inputs=_shapes(inputs))
        rows.append(row)
        open_rows.append(row)

    def end(_module: nn.Module, _inputs: tuple[Any, ...], outputs: Any) -> None:
        open_rows.pop().outputs = _shapes(outputs)

    return [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]


def _shapes(values: Any) -> list[Shape]:
    """Shapes of the tensors in `values`, nested tuples and mappings included, in order."""
    if isinstance(values, Tensor):
        return [tuple(values.shape)]
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        return [shape for value in values for shape in _shapes(value)]
    return []
