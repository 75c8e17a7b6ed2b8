"""Activation checkpointing (Chen et al. 2016, arXiv:1604.06174) in place: names of parameters stay what they were."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(modules: Iterable[nn.Module]) -> None:
    """Makes modules forget their activations and compute them again in the backward pass. Once is enough for each."""
    for module in modules:
        if not isinstance(module.forward, _Recomputed):
            module.forward = _Recomputed(module.forward)


class _Recomputed:
    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, *inputs: Any) -> Any:
        return checkpoint(self._forward, *inputs, use_reentrant=False)
