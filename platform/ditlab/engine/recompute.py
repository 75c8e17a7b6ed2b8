"""Keeping fewer activations on the device: recomputed in the backward pass (Chen et al. 2016, arXiv:1604.06174), or
waiting for it in the host's memory. In place: names of parameters stay what they were."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def keep_less(modules: Iterable[nn.Module], recomputed: bool, offloaded: bool) -> None:
    """Makes modules forget their activations and compute them again in the backward pass (`recomputed`), and keep what
    they do keep, for recomputed ones their inputs, in the host's memory (`offloaded`). Once is enough for each."""
    for module in modules:
        if not isinstance(module.forward, _KeepsLess):
            module.forward = _KeepsLess(module.forward, recomputed, offloaded)


class _KeepsLess:
    def __init__(self, forward: Any, recomputed: bool, offloaded: bool) -> None:
        self._forward, self._recomputed, self._offloaded = forward, recomputed, offloaded

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        pinned = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
        with save_on_cpu(pinned) if self._offloaded else nullcontext():
            if self._recomputed:
                return checkpoint(self._forward, *inputs, use_reentrant=False, **named)
            return self._forward(*inputs, **named)
