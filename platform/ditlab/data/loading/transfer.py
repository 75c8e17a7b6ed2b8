"""Transfer of micro-batches to a GPU, on a stream of its own and one ahead of their use.

A copy that is begun where its rows are used would run between the kernels of two passes; begun a
pass earlier, beside the stream that computes, it runs while that one does. The host waits for
neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.loader import Loader

StartedCopy = tuple[Mapping[str, Tensor], Any]
"""Columns by name, not to be read before they are handed over, as their copy may be under way, and
its end's mark.
"""


class CudaCopyStream:
    """Stream of a CUDA device on which copies run beside what is computed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, rows: Mapping[str, Tensor]) -> StartedCopy:
        """Begin to copy rows from pinned memory, without waiting."""
        with torch.cuda.stream(self._stream):
            copies = {
                name: values.to(self._device, non_blocking=True) for name, values in rows.items()
            }
            return copies, self._stream.record_event()

    def hand_over(self, copy: StartedCopy) -> Mapping[str, Tensor]:
        """Let the computing stream, not the host, wait for a copy, and keep the copy's memory until
        it is done.
        """
        computing = torch.cuda.current_stream(self._device)
        rows, end = copy
        computing.wait_event(end)
        for values in rows.values():
            # or the allocator would lend the memory to the next copy at once
            values.record_stream(computing)
        return rows


def copy_stream(device: torch.device) -> CudaCopyStream | None:
    """Return the stream of copies to a device; None where rows stay in the host's memory."""
    if device.type == "cuda":
        return CudaCopyStream(device)
    return None


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, without waiting."""
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class MicroBatch:
    """Rows of a micro-batch by column, (micro_size, *shape) in the store's dtype."""

    def __init__(
        self, rows: Mapping[str, Tensor], row_ids: np.ndarray, steps: TransferredSteps
    ) -> None:
        self.rows = rows
        """In the host's memory, all columns."""
        self.row_ids = row_ids
        """Rows of the store that were gathered, int64 (micro_size,)."""
        self.copy: StartedCopy | None = None
        """On the device, from its beginning to its last use."""
        self._steps = steps

    def on_device(self) -> Mapping[str, Tensor]:
        """Return the copied columns, for work on the device's current stream; {} where rows stay on
        the host.

        Begins the copy of the micro-batch that follows, and drops that of the one before.
        """
        return self._steps.use(self)


class TransferredSteps:
    """Iterator over a loader's steps, (micro-batches of a step), whose rows are copied to a device
    one ahead.

    At most two micro-batches are on the device in the store's dtype. The first of the next step is
    begun early only if the loader has it: nothing waits for rows that are not needed yet.
    """

    def __init__(
        self, loader: Loader, columns: Collection[str], stream: CudaCopyStream | None
    ) -> None:
        """Copy `columns` of each micro-batch; `stream` None: none."""
        self._loader = loader
        self._columns = columns
        self._stream = stream
        self._in_use: MicroBatch | None = None
        self._waiting: deque[MicroBatch] = deque()
        """Micro-batches of the present step behind the one in use."""
        self._next_step: list[MicroBatch] = []

    def __iter__(self) -> TransferredSteps:
        return self

    def __next__(self) -> list[MicroBatch]:
        step = self._next_step or self._take_step()
        self._next_step = []
        self._waiting = deque(step)
        return step

    def use(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """Return a micro-batch's copy, as `MicroBatch.on_device`; micro-batches of a step in their
        order.
        """
        if self._stream is None:
            return {}
        if batch is not self._in_use:
            if self._in_use is not None:
                self._in_use.copy = None
            self._in_use = batch
            while self._waiting and self._waiting.popleft() is not batch:
                pass  # one that no pass takes
            self._begin(batch)
            if self._waiting:
                self._begin(self._waiting[0])
            elif not self._next_step and self._loader.is_ready:
                self._next_step = self._take_step()
                self._begin(self._next_step[0])
        assert batch.copy is not None
        return self._stream.hand_over(batch.copy)

    def close(self) -> None:
        """Close the loader, and drop all copies."""
        self._next_step = []
        self._in_use = None
        self._waiting.clear()
        self._loader.close()

    def __enter__(self) -> TransferredSteps:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take_step(self) -> list[MicroBatch]:
        return [
            MicroBatch(*each, self)
            for each in zip(next(self._loader), self._loader.row_ids, strict=True)
        ]

    def _begin(self, batch: MicroBatch) -> None:
        if batch.copy is None:
            assert self._stream is not None
            batch.copy = self._stream.start({name: batch.rows[name] for name in self._columns})
