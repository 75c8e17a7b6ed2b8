"""Gathering ahead: hand-overs of several steps' rows, computed by another thread while the consumer is busy."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ditlab.data.buffers import BufferPool
from ditlab.data.sampler import SampleOrder
from ditlab.data.view import View

HandOver = dict[str, Tensor]
"""Several steps' rows by column, (steps * rows a step, *shape)."""

HAND_OVER_BYTES = 1_600_000
"""Steps are handed over together up to this size. What a hand-over costs (waking a thread takes up to 100 us on idle
virtual cores, as long as gathering ten steps of small images) is shared by the steps in it."""


class Prefetcher:
    """An iterator over the hand-overs of one worker from a position on.

    One thread gathers up to `depth` hand-overs ahead, and the next epoch's order. A consumer that comes back before
    the thread is done does not wait: it gathers the hand-over after those, so that both work.
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
        row_bytes = sum(view.columns[name].row_bytes for name in columns)
        self._at_once = max(1, HAND_OVER_BYTES // (row_bytes * rows_a_step))
        self._buffers = {
            name: BufferPool(
                self._at_once * rows_a_step,
                view.columns[name].shape,
                getattr(torch, view.columns[name].dtype),
                num=2 * depth + 2,  # those that wait, one being filled, one that the consumer is at
            )
            for name in columns
        }
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix="ditlab-loader",
            # pinned memory belongs to a thread's current device, which is the first one unless it is told
            initializer=torch.cuda.set_device if pin else None,
            initargs=(torch.cuda.current_device(),) if pin else (),
        )
        self._rows = self._rows_by_hand_over(order.batch_number(position), steps)
        self._pending: deque[Future[HandOver]] = deque()
        self._fill()

    def __next__(self) -> HandOver:
        pending = self._pending
        while pending and not pending[0].done() and len(pending) < 2 * self._depth:
            if (rows := next(self._rows, None)) is None:
                break
            pending.append(self._gather_here(rows))
        if not pending:
            raise StopIteration
        try:
            hand_over = pending.popleft().result()
        except BaseException:
            self.close()
            raise
        self._fill()
        return hand_over

    def close(self) -> None:
        """End the thread, once it has finished what it is at. What was gathered is dropped; the iterator is empty."""
        self._thread.shutdown(cancel_futures=True)
        self._pending.clear()
        self._rows.close()

    def _fill(self) -> None:
        while len(self._pending) < self._depth and (rows := next(self._rows, None)) is not None:
            self._pending.append(self._thread.submit(self._gather, rows))

    def _gather_here(self, rows: np.ndarray) -> Future[HandOver]:
        """As the thread would, so that an error is raised where its hand-over is wanted."""
        future: Future[HandOver] = Future()
        try:
            future.set_result(self._gather(rows))
        except Exception as error:
            future.set_exception(error)
        return future

    def _gather(self, rows: np.ndarray) -> HandOver:
        return {name: self._gather_column(name, rows) for name in self._columns}

    def _gather_column(self, name: str, rows: np.ndarray) -> Tensor:
        if not self._pin:
            out = self._buffers[name].take(len(rows))
        else:
            column = self._view.columns[name]
            out = torch.empty((len(rows), *column.shape), dtype=getattr(torch, column.dtype), pin_memory=True)
        return self._view.store.gather(name, rows, out)

    def _rows_by_hand_over(self, batch: int, steps: int | None) -> Generator[np.ndarray, None, None]:
        """Store rows of one hand-over after the other, int64. Hand-overs end where an epoch does."""
        epoch, start = divmod(batch, self._order.batches_per_epoch)
        left = steps
        upcoming = self._thread.submit(self._epoch_rows, epoch)
        while left is None or left > 0:
            rows = upcoming.result()
            stop = len(rows) if left is None else min(len(rows), start + left)
            if left is None or left > stop - start:
                upcoming = self._thread.submit(self._epoch_rows, epoch + 1)
            for first in range(start, stop, self._at_once):
                yield rows[first : min(first + self._at_once, stop)].reshape(-1)
            left = None if left is None else left - (stop - start)
            epoch, start = epoch + 1, 0

    def _epoch_rows(self, epoch: int) -> np.ndarray:
        """The store rows that this worker takes in an epoch, (batches, rows a step)."""
        batches = self._order.epoch_batches(epoch)
        mine = batches.reshape(len(batches), -1, self._micro_size)[:, self._micro_indices]
        return self._view.rows[mine.reshape(len(batches), -1)]
