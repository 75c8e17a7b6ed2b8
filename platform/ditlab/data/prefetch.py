"""Gathering ahead: the rows of several steps at a time, in a thread that ends when it should."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import BatchField
from ditlab.data.sampler import SampleOrder
from ditlab.data.view import View

HAND_OVER_BYTES = 800_000
"""Steps are gathered and handed over together up to this size: what one call and one hand-over cost is shared by
several steps of small samples, and the rows written still lie in the cores' second-level caches when they are read."""

SWITCH_SECONDS = 100e-6
"""What waking a thread and waiting for it costs at worst, on an idle virtual core."""


class Gatherer:
    """Fetches one worker's rows of the steps from a position on."""

    def __init__(
        self,
        view: View,
        fields: Sequence[BatchField],
        order: SampleOrder,
        micro_size: int,
        micro_indices: np.ndarray,
        pin: bool | None,
    ):
        self._view, self._order = view, order
        self._names = [f.name for f in fields]
        self._micro_size, self._micro_indices = micro_size, micro_indices
        self._pin = torch.cuda.is_available() if pin is None else pin
        row_bytes = sum(
            np.dtype(view.columns[name].dtype).itemsize * view.columns[name].row_elements for name in self._names
        )
        self._steps_at_once = max(1, HAND_OVER_BYTES // (row_bytes * micro_size * len(micro_indices)))

    def num_hand_overs(self, steps: int | None) -> int | None:
        return None if steps is None else -(-steps // self._steps_at_once)

    def hand_over(self, position: int, steps: int | None, number: int) -> dict[str, Tensor]:
        """The hand-over of a number, counted from a position, by field name: (steps in it * rows a step, *shape)."""
        first = number * self._steps_at_once
        num = self._steps_at_once if steps is None else min(self._steps_at_once, steps - first)
        batches = self._order.batches(position + first * self._order.batch_size, num)
        mine = batches.reshape(num, -1, self._micro_size)[:, self._micro_indices].reshape(-1)
        return {name: self._gather(name, mine) for name in self._names}

    def _gather(self, name: str, indices: np.ndarray) -> Tensor:
        if not self._pin:
            return self._view.gather(name, indices)
        column = self._view.columns[name]
        pinned = torch.empty((len(indices), *column.shape), dtype=getattr(torch, column.dtype), pin_memory=True)
        return self._view.gather(name, indices, out=pinned)


Item = dict[str, Tensor]


@dataclass
class _Shared:
    """What the thread and its consumer share, under one lock."""

    compute: Callable[[int], Item]
    num: int | None
    """Items in all; None for no end."""
    goal: int
    """The thread computes items below this number."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    begun: int = 0
    """Items below this number are computed, or being computed."""
    ready: dict[int, Item | BaseException] = field(default_factory=dict)
    stopped: bool = False


class Prefetcher:
    """An iterator over `compute(0)`, `compute(1)`, ..., which another thread computes up to `depth` ahead.

    The thread works while the consumer is away for longer than a thread switch costs. A consumer that comes back
    sooner computes for itself what nobody has begun: two threads that wake each other for every item are several times
    slower than one.
    """

    def __init__(self, compute: Callable[[int], Item], num: int | None, depth: int):
        self._shared = _Shared(compute, num, goal=depth)
        self._depth = depth
        self._wanted = 0
        self._left = 0.0  # when the consumer went away with an item; long ago, at first
        thread = threading.Thread(target=_run, args=(self._shared,), name="ditlab-loader", daemon=True)
        # the thread holds what is shared and not this object, so a prefetcher that is dropped unclosed ends it too
        self.close = weakref.finalize(self, _stop, thread, self._shared)
        """Ends the thread; nothing is left of it afterwards."""
        thread.start()

    def __next__(self) -> Item:
        shared, number = self._shared, self._wanted
        was_away = time.perf_counter() - self._left > SWITCH_SECONDS
        with shared.changed:
            if shared.stopped or number == shared.num:
                raise StopIteration
            if was_away and shared.goal <= number + self._depth:
                shared.goal = number + 1 + self._depth
                shared.changed.notify()
            if shared.begun == number:
                shared.begun += 1
                mine = True
            else:
                mine = False
                while number not in shared.ready:
                    shared.changed.wait()
                item = shared.ready.pop(number)
        if mine:
            item = shared.compute(number)
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._wanted += 1
        self._left = time.perf_counter()
        return item


def _run(shared: _Shared) -> None:
    with shared.changed:
        while not shared.stopped and shared.begun != shared.num:
            if shared.begun >= shared.goal:
                shared.changed.wait()
                continue
            number = shared.begun
            shared.begun += 1
            shared.changed.release()
            item: Item | BaseException
            try:
                item = shared.compute(number)
            except BaseException as error:  # whatever it is, it is raised where the item is wanted
                item = error
            shared.changed.acquire()
            shared.ready[number] = item
            shared.changed.notify()


def _stop(thread: threading.Thread, shared: _Shared) -> None:
    with shared.changed:
        shared.stopped = True
        shared.changed.notify()
    thread.join()
    shared.ready.clear()
