"""Loader of micro-batches: threads gather a worker's part of coming global batches while the
consumer is busy.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.order import Order
from ditlab.data.stores.row_changes import change_rows
from ditlab.data.stores.view import View

StepBatches = list[dict[str, Tensor]]
"""Micro-batches of one optimiser step on one worker, by field name, (micro_size, *shape), in the
store's dtype.
"""
Block = tuple[dict[str, Tensor], np.ndarray]
"""Consecutive steps on one worker: values by column, (steps * rows a step, *shape), and the store's
rows, int64.
"""
BLOCK_BYTES = 6_400_000
"""Most bytes of a step block, unless one step has more.

Waking a thread costs up to 100 microseconds on idle virtual cores, ten steps of small images; 1.6
MB reached 0.6 of the throughput that this does, and 12.8 MB no more.
"""
NUM_THREADS = 2
"""Gathering is bound by memory: one thread reached 0.65 of a contiguous copy's throughput, two
reach 0.9.
"""


class Loader:
    """Iterator over a worker's steps, from `position` on; `steps` of them, or without end.

        with Loader(WorkerBatches(view, columns, order, micro_size, micro_indices), position) as
            loader: for micro_batches in loader: ...

    A few threads gather up to `depth` blocks of a few steps each ahead, each block by one of them;
    the first block, alone, before any other. The tensors are the caller's own; with `pin` (None:
    where CUDA is available) they lie in pinned memory. An error in the background is raised here,
    with its own traceback.
    """

    def __init__(
        self,
        batches: WorkerBatches,
        position: int,
        *,
        steps: int | None = None,
        depth: int = 4,
        pin: bool | None = None,
    ):
        self.position = position
        """Position of the step that comes next: the one that a checkpoint made now must hold."""
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1")
        if pin is None:
            pin = torch.cuda.is_available()
        self._batches = batches
        self._depth = depth
        self._pin = pin
        self._steps: deque[tuple[StepBatches, list[np.ndarray]]] = deque()
        self.row_ids: list[np.ndarray] = []
        """Rows of the store in the step handed out last, int64 (micro_size,) for each of its
        micro-batches.
        """
        parts = [part.columns for part in batches.view.store.parts]
        row_bytes = [sum(columns[name].row_bytes for name in batches.columns) for columns in parts]
        self._block_steps = [
            max(1, BLOCK_BYTES // (batches.step_rows * each)) for each in row_bytes
        ]
        """Most steps of a block, by bucket."""
        self._next_steps = 1
        """Most steps of the next block: the first ones are short, or the first step would wait for
        the whole block.
        """
        rows = [steps * batches.step_rows for steps in self._block_steps]
        self._buffers = {
            name: BufferPool(
                max(
                    num * columns[name].row_elements
                    for num, columns in zip(rows, parts, strict=True)
                ),
                getattr(torch, batches.view.columns[name].dtype),
                # those that wait or are being filled, and two that the consumer is at
                num=depth + 2,
            )
            for name in batches.columns
        }
        initializer = None
        if pin:  # its memory belongs to a thread's current device, by default the first one
            initializer = partial(torch.cuda.set_device, torch.cuda.current_device())
        self._threads = ThreadPoolExecutor(
            NUM_THREADS, thread_name_prefix="ditlab-loader", initializer=initializer
        )
        self._batch = batches.order.batch_number(position)
        """Batch that comes next, over all epochs."""
        self._stop = sys.maxsize if steps is None else self._batch + steps
        """Batch after the last one."""
        self._lock = threading.Lock()
        self._gathered = self._batch
        self._later = dict[int, int]()
        """First batch that is not gathered yet, and stretches (first, stop) of later ones that
        are.
        """
        self._announced = self._batch
        """First batch whose rows were not announced to the store."""
        self._pending: deque[Future[Block]] = deque()
        self._threads.submit(self._announce)
        # others, gathered beside it, would hold the interpreter: 1.2 of the time to the first batch
        self._fill(1)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> StepBatches:
        if not self._steps:
            if not self._pending:
                raise StopIteration
            try:
                columns, row_ids = self._pending.popleft().result()
            except BaseException as error:
                # a second Ctrl-C: threads may wait for a store that is away
                if not isinstance(error, Exception):
                    for part in self._batches.view.store.parts:
                        part.close()
                self.close()
                raise
            self._fill(self._depth)
            self._steps.extend(self._cut(columns, row_ids))
        step, self.row_ids = self._steps.popleft()
        self.position += self._batches.order.batch_size
        return step

    def _cut(
        self, columns: Mapping[str, Tensor], row_ids: np.ndarray
    ) -> Iterator[tuple[StepBatches, list[np.ndarray]]]:
        """Cut a block into the micro-batches of its steps, and their rows."""
        num = len(self._batches.micro_indices)
        size = self._batches.micro_size
        micros = [values.view(-1, size, *values.shape[1:]).unbind() for values in columns.values()]
        batches = [
            dict(zip(columns, tensors, strict=True)) for tensors in zip(*micros, strict=True)
        ]
        ids = list(row_ids.reshape(-1, size))
        for first in range(0, len(batches), num):
            yield batches[first : first + num], ids[first : first + num]

    @property
    def is_ready(self) -> bool:
        """True if the next step can be had without waiting; false where there is none, or an error
        in its place.
        """
        if self._steps:
            return True
        if not self._pending:
            return False
        first = self._pending[0]
        return first.done() and not first.cancelled() and first.exception() is None

    def close(self) -> None:
        """End the threads once they have finished their block, and drop what they hold. Closing
        twice is fine.
        """
        self._steps.clear()
        self._stop = self._batch
        self._threads.shutdown(cancel_futures=True)
        self._pending.clear()
        for part in self._batches.view.store.parts:
            part.expect(np.empty(0, np.int64))

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _fill(self, depth: int) -> None:
        while len(self._pending) < depth and self._batch < self._stop:
            part, run = self._batches.order.shape_run(self._batch, max(self._block_steps))
            count = min(run, self._block_steps[part], self._next_steps, self._stop - self._batch)
            self._next_steps = min(2 * self._next_steps, max(self._block_steps))
            self._pending.append(self._threads.submit(self._gather, self._batch, count))
            self._batch += count

    def _gather(self, first: int, count: int) -> Block:
        """Gather the rows of batches of one bucket."""
        rows = self._batches.rows(first, count)
        part, part_rows = self._batches.view.store.locate(rows)
        block: dict[str, Tensor] = {}
        for name in self._batches.columns:
            shape = (len(rows), *part.columns[name].shape)
            dtype = getattr(torch, part.columns[name].dtype)
            if self._pin:
                out = torch.empty(shape, dtype=dtype, pin_memory=True)
            else:
                out = self._buffers[name].take(shape)
            block[name] = part.gather(name, part_rows, out)
        changes = self._batches.view.changes
        if changes:
            change_rows(changes, block, rows, self._batches.draws(first, count), self._batches.seed)
        with self._lock:
            self._later[first] = first + count
            while self._gathered in self._later:
                self._gathered = self._later.pop(self._gathered)
        self._announce()
        self._batches.order.look_ahead(first + count, self._stop)
        return block, rows

    def _announce(self) -> None:
        """Announce coming rows, once all of the last announcement are gathered: earlier, the store
        would drop these.
        """
        with self._lock:
            if self._announced <= self._gathered < self._stop:
                batches = self._batches
                self._announced = batches.order.announce(
                    batches.view, self._gathered, batches.places
                )


@dataclass(frozen=True, eq=False)
class WorkerBatches:
    """Micro-batches of one worker in every step."""

    view: View
    columns: tuple[str, ...]
    """Columns of the view's store that are loaded."""
    order: Order
    micro_size: int
    """Samples of a micro-batch."""
    micro_indices: Sequence[int]
    """Global indices, within a step, of this worker's micro-batches."""
    seed: int = 0
    """Seed of the changes of samples (`row_changes`)."""

    @property
    def step_rows(self) -> int:
        """Rows that a step takes on this worker."""
        return self.micro_size * len(self.micro_indices)

    @cached_property
    def places(self) -> np.ndarray:
        """Places of this worker's samples in the global batch, int64 (step_rows,)."""
        first = np.asarray(self.micro_indices, np.int64) * self.micro_size
        return (first[:, None] + np.arange(self.micro_size)).reshape(-1)

    def rows(self, first: int, count: int) -> np.ndarray:
        """Return the store rows that this worker takes in `count` batches from the `first` on,
        int64 (count * step_rows,)."""
        return self.view.rows[self.order.batches(first, count, self.places).reshape(-1)]

    def draws(self, first: int, count: int) -> np.ndarray:
        """Return the numbers of these samples among all of the run, int64 (count * step_rows,)."""
        batches = np.arange(first, first + count, dtype=np.int64)[:, None]
        return (batches * self.order.batch_size + self.places).reshape(-1)


class BufferPool:
    """Tensors of up to `elements` numbers whose memory is used again once the last view of it is
    gone.

    Fresh memory comes from the operating system a page fault at a time: without the pool the loader
    gives 0.6 of the samples a second (benchmarks/data/loader_throughput.py). Pinned memory is
    pooled by torch's own allocator.
    """

    def __init__(self, elements: int, dtype: torch.dtype, num: int):
        self._elements = elements
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._num = num
        self._buffers: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor of a shape; where all `num` buffers are in use, of
        ordinary memory.
        """
        with self._lock:
            # 3: the pool's list, `each` and the argument; tensors and their views keep a reference
            # more
            free = next((each for each in self._buffers if sys.getrefcount(each) == 3), None)
            if free is None:
                free = np.empty(self._elements, self._dtype)
                if len(self._buffers) < self._num:
                    self._buffers.append(free)
            return torch.from_numpy(free[: math.prod(shape)].reshape(shape))
