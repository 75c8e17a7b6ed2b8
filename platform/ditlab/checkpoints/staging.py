"""Staging of a worker's state on the host: as it was at a step, while the next steps change it.

One buffer holds all of it, laid out as the shard's file is, and is kept from save to save: copies into memory that was
touched before run at full speed. It is pinned where the state lies on a GPU.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ditlab.checkpoints.shard import TensorKey, raw_bytes

KeyedTensors = Sequence[tuple[TensorKey, Tensor]]

NUM_COPIERS = min(4, os.cpu_count() or 1)
"""Threads for copying. torch's own threads meet after each tensor: on a busy machine that took thirty times as long."""


class HostCopy:
    """A copy of a worker's tensors in host memory, as large as the worker's part of the state."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._views: list[tuple[TensorKey, Tensor]] = []
        self._copiers = ThreadPoolExecutor(NUM_COPIERS, thread_name_prefix="checkpoint-copier")

    def reserve(self, tensors: KeyedTensors) -> None:
        """Allocate and touch the memory for tensors of these sizes."""
        needed = sum(tensor.nbytes for _, tensor in tensors)
        if needed > self._buffer.numel():
            self._views, self._buffer = [], torch.empty(0, dtype=torch.uint8)  # the old one goes before the new comes
            pinned = any(tensor.is_cuda for _, tensor in tensors)
            self._buffer = torch.empty(needed, dtype=torch.uint8, pin_memory=pinned).zero_()

    def take(self, tensors: KeyedTensors) -> None:
        """Copy tensors, which may change when this returns."""
        self.reserve(tensors)
        views, offset = [], 0
        for key, tensor in tensors:
            end = offset + tensor.nbytes
            views.append((key, self._buffer[offset:end].view(tensor.dtype)))
            offset = end
        pairs = [(view, tensor.detach()) for (_, view), (_, tensor) in zip(views, tensors, strict=True)]
        on_gpu = [pair for pair in pairs if pair[1].is_cuda]
        for view, tensor in on_gpu:
            view.copy_(tensor.reshape(-1), non_blocking=True)
        on_host = [pair for pair in pairs if not pair[1].is_cuda]
        list(self._copiers.map(_copy, [on_host[first::NUM_COPIERS] for first in range(NUM_COPIERS)]))
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        self._views = views

    @property
    def tensors(self) -> KeyedTensors:
        """Flattened copies of the tensors."""
        return self._views

    def regions(self) -> Iterator[memoryview]:
        """The bytes of all tensors, in order."""
        yield raw_bytes(self._buffer[: sum(view.nbytes for _, view in self._views)])


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for view, tensor in pairs:
        np.copyto(view.view(torch.uint8).numpy(), tensor.reshape(-1).view(torch.uint8).numpy())


class InPlace:
    """The tensors themselves, for a step loop that waits: needs no memory but for one GPU tensor at a time."""

    def __init__(self) -> None:
        self.tensors: KeyedTensors = ()

    def reserve(self, tensors: KeyedTensors) -> None:
        """Do nothing: no memory is needed."""

    def take(self, tensors: KeyedTensors) -> None:
        """Keep references to the tensors."""
        self.tensors = tensors

    def regions(self) -> Iterator[memoryview]:
        """The bytes of each tensor, in order."""
        for _, tensor in self.tensors:
            yield raw_bytes(tensor.detach().contiguous().cpu())
