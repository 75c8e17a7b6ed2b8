"""Activations that wait in the host's memory for the backward pass, on the meta device."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@dataclass(frozen=True, eq=False)
class WaitingTensor:
    """Copy of a tensor in the host's memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class OffloadedTensors:
    """Count of the tensors that torch's `save_on_cpu` would keep in pinned memory, and a stand-in for it.

    Every tensor that an operation keeps is copied, parameters and those that were copied for another one included.
    """

    def __init__(self) -> None:
        self.live = 0
        """Bytes in the host's memory."""
        self.peak = 0
        """Most bytes that were there at once."""
        self.moved = 0
        """Bytes copied to the host so far; as many come back."""

    def hooks(self) -> AbstractContextManager[None]:
        """Keep what operations save inside in the host's memory."""
        hooks: AbstractContextManager[None] = saved_tensors_hooks(self._pack, self._unpack)
        return hooks

    def _pack(self, tensor: Tensor) -> WaitingTensor:
        self.moved += tensor.nbytes
        size = 1 << max(0, tensor.nbytes - 1).bit_length()  # torch takes pinned memory by powers of two
        waiting = WaitingTensor(tuple(tensor.shape), tensor.dtype)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(waiting, self._freed, size)
        return waiting

    def _freed(self, size: int) -> None:
        self.live -= size

    def _unpack(self, waiting: WaitingTensor) -> Tensor:
        return torch.empty(waiting.shape, dtype=waiting.dtype, device="meta")
