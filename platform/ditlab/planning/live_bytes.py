"""Bytes of the tensors that are alive, and their peak, on any device and on the meta device.

Every storage that an operation takes or returns is counted from then on until it is freed, once, at its whole size.
Memory that a kernel takes within an operation does not show, nor does that of compiled code.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Count of the bytes of live tensors of one device in this thread, its backward passes included."""

    def __init__(self, device: str) -> None:
        """Count tensors of a type of device: `cpu`, `cuda` or `meta`."""
        super().__init__()
        self._device = device
        self.live = 0
        """Bytes alive."""
        self.peak = 0
        """Most bytes that were alive at once since the start, or `restart`."""
        self._storages: dict[int, tuple[weakref.ref[Any], int]] = {}

    def restart(self) -> None:
        """Begin the peak anew, at what is alive."""
        self.peak = self.live

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, if it is not counted yet, or its new size."""
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        known = self._storages.get(key)
        if known is None:
            reference = weakref.ref(storage, partial(self._freed, key))
        elif known[1] == size:
            return
        else:
            reference = known[0]
            self.live -= known[1]
        self._storages[key] = reference, size
        self.live += size
        self.peak = max(self.peak, self.live)

    def _freed(self, key: int, _: Any) -> None:
        self.live -= self._storages.pop(key)[1]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_iter((args, kwargs)):
            if isinstance(value, Tensor):
                self.add(value)
        result = function(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self.add(value)
        return result
