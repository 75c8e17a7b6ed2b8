"""Shapes of a forward pass, traced on the meta device without computation or allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from ditlab_models.contract import ModelSpec
from ditlab_models.families import family_of

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
    """Trace every call of a module in one forward pass, in the order in which calls begin: parents
    before children.
    """
    family = family_of(model)
    with torch.device("meta"):
        network = family.build_network(model)
    assert isinstance(network, nn.Module)
    paths = {module: path for path, module in network.named_modules()}
    rows: list[ShapeRow] = []
    open_rows: list[ShapeRow] = []

    def begin(module: nn.Module, inputs: Any) -> None:
        parameters = sum(parameter.numel() for parameter in module.parameters())
        rows.append(ShapeRow(paths[module], type(module).__name__, parameters, shapes(inputs)))
        open_rows.append(rows[-1])

    def end(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
        open_rows.pop().outputs = shapes(outputs)

    def shapes(values: Any) -> list[Shape]:
        return [tuple(each.shape) for each in tree_iter(values) if isinstance(each, Tensor)]

    for module in paths:
        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
    with torch.no_grad():
        network(*family.example_inputs(model, batch_size, device="meta"))
    return rows
