"""Activation checkpointing (Chen et al. 2016, arXiv:1604.06174), and activations offloaded to host memory.

Both change modules in place: names of parameters stay what they were.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(modules: Iterable[nn.Module], recomputed: bool, offloaded: bool) -> None:
    """Recompute activations of modules in the backward pass (`recomputed`), and keep tensors on the host (`offloaded`).

    With both, the inputs of the recomputed modules are kept on the host. A module is changed once only.
    """
    for module in modules:
        if not isinstance(module.forward, _CheckpointedForward):
            module.forward = _CheckpointedForward(module.forward, recomputed, offloaded)


class _CheckpointedForward:
    """Forward pass of a module that recomputes or offloads its activations."""

    def __init__(self, forward: Any, recomputed: bool, offloaded: bool) -> None:
        self._forward, self._recomputed, self._offloaded = forward, recomputed, offloaded

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        pinned = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
        with save_on_cpu(pinned) if self._offloaded else nullcontext():
            if self._recomputed:
                return checkpoint(self._forward, *inputs, use_reentrant=False, **named)
            return self._forward(*inputs, **named)
