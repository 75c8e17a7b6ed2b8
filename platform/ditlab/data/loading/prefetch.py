"""Gathering ahead: hand-overs of several steps' rows, computed by other threads while the consumer is busy."""

import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import mul

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.buffers import BufferPool
from ditlab.data.loading.order import SampleOrder
from ditlab.data.stores.view import View

HandOver = dict[str, Tensor]
"""Several steps' rows by column, (steps * rows a step, *shape)."""

AHEAD_BYTES = 6_400_000
"""A thread gathers steps together up to this size. Waking a thread costs up to 100 microseconds on idle virtual cores,
ten steps of small images; 1.6 MB reached 0.6 of the throughput that this does, and 12.8 MB no more."""

NUM_THREADS = 2
"""Gathering is bound by memory: one thread reached 0.65 of a contiguous copy's throughput, two reach 0.9."""


class Prefetcher:
    """An iterator over the hand-overs of one worker from a position on.

    A few threads gather up to `depth` hand-overs ahead, each hand-over by one of them.
    """

    def __init__(
        self,
        view: View,
        columns: list[str],
        order: SampleOrder,
        position: int,
        micro_size: int,
        micro_indices: np.ndarray,
        steps: int | None,
        depth: int,
        pin: bool,
    ):
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1")
        self._view, self._columns, self._order = view, columns, order
        self._micro_size, self._micro_indices = micro_size, micro_indices
        self._depth, self._pin = depth, pin
        rows_a_step = micro_size * len(micro_indices)
        parts = [part.columns for part in view.store.parts]
        step_bytes = [rows_a_step * sum(part[name].row_bytes for name in columns) for part in parts]
        self._steps_ahead = [max(1, AHEAD_BYTES // each) for each in step_bytes]
        """Steps of a hand-over at most, by bucket."""
        self._buffers = {
            name: BufferPool(
                rows_a_step * max(map(mul, self._steps_ahead, (part[name].row_elements for part in parts))),
                getattr(torch, view.columns[name].dtype),
                num=depth + 2,  # those that wait or are being filled, and two that the consumer is at
            )
            for name in columns
        }
        self._threads = ThreadPoolExecutor(
            NUM_THREADS,
            thread_name_prefix="ditlab-loader",
            # pinned memory belongs to a thread's current device, which is the first one unless it is told
            initializer=partial(torch.cuda.set_device, torch.cuda.current_device()) if pin else None,
        )
        self._epoch, self._batch = divmod(order.batch_number(position), order.batches_per_epoch)
        self._steps_left = math.inf if steps is None else steps
        self._rows: np.ndarray | None = None
        """Store rows of this worker in the current epoch, (batches, rows a step)."""
        self._bucket_of = np.empty(0, np.int64)
        """The bucket of each of these batches, (batches,)."""
        self._upcoming = self._threads.submit(self._epoch_rows, self._epoch)
        """Those of the epoch that comes next."""
        self._pending: deque[Future[HandOver]] = deque()
        self._fill()

    def __next__(self) -> HandOver:
        if not self._pending:
            raise StopIteration
        try:
            hand_over = self._pending.popleft().result()
        except BaseException:
            self.close()
            raise
        self._fill()
        return hand_over

    def close(self) -> None:
        """End the threads, once they have finished what they are at. What was gathered is dropped."""
        self._threads.shutdown(cancel_futures=True)
        self._pending.clear()
        self._steps_left = 0

    def _fill(self) -> None:
        while len(self._pending) < self._depth and (rows := self._take_rows()) is not None:
            self._pending.append(self._threads.submit(self._gather, rows))

    def _take_rows(self) -> np.ndarray | None:
        """Store rows of the next hand-over's steps, int64, within one epoch and one bucket; None after the last."""
        if self._steps_left == 0:
            return None
        if self._rows is None or self._batch == len(self._rows):
            if self._rows is not None:
                self._epoch, self._batch = self._epoch + 1, 0
            self._rows = self._upcoming.result()
            self._bucket_of = self._view.store.bucket_of(self._rows[:, 0])
            if self._steps_left > len(self._rows) - self._batch:
                self._upcoming = self._threads.submit(self._epoch_rows, self._epoch + 1)
        bucket = self._bucket_of[self._batch]
        ahead = self._bucket_of[self._batch : self._batch + self._steps_ahead[bucket]]
        others = np.flatnonzero(ahead != bucket)
        taken = int(min(others[0] if len(others) else len(ahead), self._steps_left))
        rows = self._rows[self._batch : self._batch + taken].reshape(-1)
        self._batch += taken
        self._steps_left -= taken
        return rows

    def _gather(self, rows: np.ndarray) -> HandOver:
        return {name: self._gather_column(name, rows) for name in self._columns}

    def _gather_column(self, name: str, rows: np.ndarray) -> Tensor:
        store = self._view.store
        column = store.parts[store.bucket_of(rows[:1])[0]].columns[name]
        shape = (len(rows), *column.shape)
        if self._pin:
            out = torch.empty(shape, dtype=getattr(torch, column.dtype), pin_memory=True)
        else:
            out = self._buffers[name].take(shape)
        return store.gather(name, rows, out)

    def _epoch_rows(self, epoch: int) -> np.ndarray:
        """The store rows that this worker takes in an epoch, (batches, rows a step)."""
        batches = self._order.epoch_batches(epoch)
        mine = batches.reshape(len(batches), -1, self._micro_size)[:, self._micro_indices]
        return self._view.rows[mine.reshape(len(batches), -1)]
