"""Prefetching: threads gather the rows of coming steps while the consumer is busy."""

import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import mul

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.buffers import BufferPool
from ditlab.data.loading.worker_batches import WorkerBatches

StepBlock = dict[str, Tensor]
"""Rows of several consecutive steps by column, (steps * rows a step, *shape)."""

BLOCK_BYTES = 6_400_000
"""Most bytes of a step block, unless one step has more.

Waking a thread costs up to 100 microseconds on idle virtual cores, ten steps of small images; 1.6 MB reached 0.6 of the
throughput that this does, and 12.8 MB no more.
"""

NUM_THREADS = 2
"""Gathering is bound by memory: one thread reached 0.65 of a contiguous copy's throughput, two reach 0.9."""


class Prefetcher:
    """Iterator over the step blocks of one worker from a position on.

    A few threads gather up to `depth` blocks ahead, each block by one of them.
    """

    def __init__(self, batches: WorkerBatches, position: int, *, steps: int | None, depth: int, pin: bool):
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1")
        self._batches, self._depth, self._pin = batches, depth, pin
        view = batches.view
        parts = [part.columns for part in view.store.parts]
        step_bytes = [batches.step_rows * sum(part[name].row_bytes for name in batches.columns) for part in parts]
        self._block_steps = [max(1, BLOCK_BYTES // each) for each in step_bytes]
        """Most steps of a block, by bucket."""
        self._buffers = {
            name: BufferPool(
                batches.step_rows * max(map(mul, self._block_steps, (part[name].row_elements for part in parts))),
                getattr(torch, view.columns[name].dtype),
                num=depth + 2,  # those that wait or are being filled, and two that the consumer is at
            )
            for name in batches.columns
        }
        self._threads = ThreadPoolExecutor(
            NUM_THREADS,
            thread_name_prefix="ditlab-loader",
            # pinned memory belongs to a thread's current device, by default the first one
            initializer=partial(torch.cuda.set_device, torch.cuda.current_device()) if pin else None,
        )
        order = batches.order
        self._epoch, self._batch = divmod(order.batch_number(position), order.batches_per_epoch)
        self._steps_left = math.inf if steps is None else steps
        self._rows: np.ndarray | None = None
        """Store rows of this worker in the current epoch, (batches, rows a step)."""
        self._bucket_of = np.empty(0, np.int64)
        """Bucket of each of these batches, (batches,)."""
        self._next_rows = self._threads.submit(batches.epoch_rows, self._epoch)
        """Store rows of the next epoch, in the making."""
        self._pending: deque[Future[StepBlock]] = deque()
        self._fill()

    def __next__(self) -> StepBlock:
        if not self._pending:
            raise StopIteration
        try:
            block = self._pending.popleft().result()
        except BaseException:
            self.close()
            raise
        self._fill()
        return block

    def close(self) -> None:
        """End the threads once they have finished their current block, and drop all gathered rows."""
        self._threads.shutdown(cancel_futures=True)
        self._pending.clear()
        self._steps_left = 0

    def _fill(self) -> None:
        while len(self._pending) < self._depth and (rows := self._take_rows()) is not None:
            self._pending.append(self._threads.submit(self._gather, rows))

    def _take_rows(self) -> np.ndarray | None:
        """Return the store rows of the next block, int64, within one epoch and one bucket; None after the last."""
        if self._steps_left == 0:
            return None
        if self._rows is None or self._batch == len(self._rows):
            if self._rows is not None:
                self._epoch, self._batch = self._epoch + 1, 0
            self._rows = self._next_rows.result()
            self._bucket_of = self._batches.view.store.bucket_of(self._rows[:, 0])
            if self._steps_left > len(self._rows) - self._batch:
                self._next_rows = self._threads.submit(self._batches.epoch_rows, self._epoch + 1)
        bucket = self._bucket_of[self._batch]
        ahead = self._bucket_of[self._batch : self._batch + self._block_steps[bucket]]
        others = np.flatnonzero(ahead != bucket)
        taken = int(min(others[0] if len(others) else len(ahead), self._steps_left))
        rows = self._rows[self._batch : self._batch + taken].reshape(-1)
        self._batch += taken
        self._steps_left -= taken
        return rows

    def _gather(self, rows: np.ndarray) -> StepBlock:
        part, part_rows = self._batches.view.store.locate(rows)
        block = {}
        for name in self._batches.columns:
            shape, dtype = (len(rows), *part.columns[name].shape), getattr(torch, part.columns[name].dtype)
            out = torch.empty(shape, dtype=dtype, pin_memory=True) if self._pin else self._buffers[name].take(shape)
            block[name] = part.gather(name, part_rows, out)
        return block
