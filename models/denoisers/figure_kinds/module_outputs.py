"""Outputs of modules inside a network, kept from one forward pass, for figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def module_outputs(modules: Sequence[nn.Module], forward: Callable[[], object]) -> list[Tensor]:
    """Run `forward` without gradients and return the output of each module, in the modules' order.

    Each module has to run in it, with a tensor as output; of one that runs several times, the last output is returned.
    """
    kept: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _args: object, output: Tensor) -> None:
        kept[module] = output.detach()

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return [kept[module] for module in modules]
