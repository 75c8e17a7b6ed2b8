"""Prefetching: threads gather the rows of coming steps while the consumer is busy."""

import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import mul

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.buffers import BufferPool
from ditlab.data.loading.worker_batches import WorkerBatches


@dataclass(frozen=True)
class StepBlock:
    """Rows of several consecutive steps on one worker."""

    columns: dict[str, Tensor]
    """Values by column, (steps * rows a step, *shape)."""
    row_ids: np.ndarray
    """Rows of the store that were gathered, int64 (steps * rows a step,)."""


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
        self._batch = batches.order.batch_number(position)
        """Batch that comes next, over all epochs."""
        self._stop = sys.maxsize if steps is None else self._batch + steps
        """Batch after the last one."""
        self._lock = threading.Lock()
        self._gathered, self._later = self._batch, dict[int, int]()
        """First batch that is not gathered yet, and stretches (first, stop) of later ones that are."""
        self._announced = self._batch
        """First batch whose rows were not announced to the store."""
        self._pending: deque[Future[StepBlock]] = deque()
        self._threads.submit(self._announce)
        self._fill()

    def __next__(self) -> StepBlock:
        if not self._pending:
            raise StopIteration
        try:
            block = self._pending.popleft().result()
        except BaseException as error:
            if not isinstance(error, Exception):  # a second Ctrl-C: threads may wait for a store that is away
                for part in self._batches.view.store.parts:
                    part.close()
            self.close()
            raise
        self._fill()
        return block

    @property
    def is_ready(self) -> bool:
        """True if the next block has been gathered."""
        if not self._pending or not (first := self._pending[0]).done():
            return False
        return not first.cancelled() and first.exception() is None

    def close(self) -> None:
        """End the threads once they have finished their current block, and drop all gathered rows."""
        self._stop = self._batch
        self._threads.shutdown(cancel_futures=True)
        self._pending.clear()
        for part in self._batches.view.store.parts:
            part.expect(np.empty(0, np.int64))

    def _fill(self) -> None:
        while len(self._pending) < self._depth and self._batch < self._stop:
            part, run = self._batches.order.shape_run(self._batch, max(self._block_steps))
            count = min(run, self._block_steps[part], self._stop - self._batch)
            self._pending.append(self._threads.submit(self._gather, self._batch, count))
            self._batch += count

    def _gather(self, first: int, count: int) -> StepBlock:
        """Gather the rows of batches of one bucket."""
        rows = self._batches.rows(first, count)
        part, part_rows = self._batches.view.store.locate(rows)
        block: dict[str, Tensor] = {}
        for name in self._batches.columns:
            shape, dtype = (len(rows), *part.columns[name].shape), getattr(torch, part.columns[name].dtype)
            out = torch.empty(shape, dtype=dtype, pin_memory=True) if self._pin else self._buffers[name].take(shape)
            block[name] = part.gather(name, part_rows, out)
        with self._lock:
            self._later[first] = first + count
            while self._gathered in self._later:
                self._gathered = self._later.pop(self._gathered)
        self._announce()
        self._batches.order.look_ahead(first + count, self._stop)
        return StepBlock(block, rows)

    def _announce(self) -> None:
        """Announce coming rows to the store, once all batches of the last announcement are gathered.

        Any earlier, the store would drop rows that another thread is about to read.
        """
        with self._lock:
            if self._announced <= self._gathered < self._stop:
                self._announced = self._batches.announce(self._gathered)
