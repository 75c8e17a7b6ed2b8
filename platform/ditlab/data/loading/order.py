"""Order of samples: a function of (seed, epoch) alone, with a position that counts samples.

`FullOrder` is the order by one sorted permutation of all samples (`data.order.kind=full`).
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ditlab.data.loading.permutations import keyed_permutation
from ditlab.data.stores.view import View
from ditlab.errors import UserError

CHUNK_BATCHES = 4
"""Consecutive batches of one image size: memory is set up again for another size."""


@dataclass(frozen=True)
class UpcomingRows:
    """Rows that a worker needs soon, for a store that fetches them ahead."""

    ranges: np.ndarray
    """Ranges (first, stop) of view indices, int64 (ranges, 2), in the order of need."""
    until: int
    """First batch for which others are needed."""


class Order(ABC):
    """Samples of each global batch of a run, none twice in an epoch. Batches are numbered over all epochs.

    A position counts the samples taken since the start of the run; it is a multiple of the batch size.
    """

    batch_size: int
    """Global batch: samples of one optimiser step."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """Whole batches that an epoch has."""

    @property
    @abstractmethod
    def left_out(self) -> int:
        """Samples of each epoch that no batch takes."""

    @abstractmethod
    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        """Return view indices of `count` batches from the `first` on, int64 (count, batch_size).

        `columns`: places in the batch that are wanted, int64 (None: all); the result is (count, len(columns)). Several
        threads may call this at once.
        """

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        """Return (number in the store's `parts`, how many batches from this one on are of that part's shapes, 1 to
        `most`)."""
        return 0, most

    def look_ahead(self, batch: int, stop: int) -> None:  # noqa: B027
        """Compute what batches soon after this one, before `stop`, need, where that takes long; called on a background
        thread."""

    def upcoming(self, batch: int, columns: np.ndarray) -> UpcomingRows:
        """Return the rows that these columns of coming batches take, as far as they lie together; else none."""
        return UpcomingRows(np.zeros((0, 2), np.int64), sys.maxsize)

    def rows_ahead(self, columns: np.ndarray) -> dict[int, int]:
        """Return the most rows that `upcoming` announces for these columns, by number in the store's `parts`."""
        return {}

    def epoch(self, position: int) -> int:
        """Return the epoch that the batch at a position belongs to, from 0."""
        return self.batch_number(position) // self.batches_per_epoch

    def indices(self, position: int) -> np.ndarray:
        """Return the view indices of the batch at a position, int64 (batch_size,)."""
        found: np.ndarray = self.batches(self.batch_number(position), 1)[0]
        return found

    def batch_number(self, position: int) -> int:
        """Return the number of batches taken before a position. Raises ValueError for a position inside a batch."""
        batch, rest = divmod(position, self.batch_size)
        if rest or position < 0:
            raise ValueError(f"position {position} is no multiple of the batch size {self.batch_size}")
        return batch


def first_run(numbers: np.ndarray) -> tuple[int, int]:
    """Return the first of some numbers, and how many from it on are equal to it."""
    others = np.flatnonzero(numbers != numbers[0])
    return int(numbers[0]), int(others[0]) if len(others) else len(numbers)


def check_fills_a_batch(lengths: Iterable[int], batch_size: int) -> None:
    """Raise UserError where no bucket of these many training samples fills a batch."""
    lengths = list(lengths)
    if max(lengths, default=0) >= batch_size:
        return
    total = sum(lengths)
    if total < batch_size:
        raise UserError(
            f"batch.size={batch_size} is larger than the {total} training samples; set batch.size to {total} or less, "
            "or lower data.hold_out."
        )
    raise UserError(
        f"batch.size={batch_size} is larger than the {max(lengths)} training samples of the commonest of "
        f"{len(lengths)} image sizes, and a batch takes images of one size; set batch.size to {max(lengths)} or less, "
        "or import the images again with fewer sizes."
    )


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """Return the order in which an epoch visits `length` samples: an int64 permutation, (length,)."""
    return keyed_permutation(f"ditlab.epoch/{seed}/{epoch}", length)


@dataclass(frozen=True)
class _EpochBatches:
    """Batches of an epoch, in half of the memory where the samples' numbers allow it."""

    indices: np.ndarray
    """View indices, uint32 or int64 (batches, batch_size)."""
    buckets: np.ndarray
    """Bucket of each batch by its place in `FullOrder.buckets`; empty where there is one."""


@dataclass(frozen=True, eq=False)
class FullOrder(Order):
    """Samples of each global batch: of one shape, none twice in an epoch. Partial batches are dropped.

    Where the data have several image sizes, each size's samples are permuted and cut into batches; the batches, by
    image area, into chunks of CHUNK_BATCHES of one size; and the chunks are shuffled. Each epoch does all of it again,
    in time and memory that grow with the number of samples.

    Raises UserError where the data cannot fill one batch.
    """

    length: int
    """Samples in the training view."""
    batch_size: int
    """Global batch: samples of one optimiser step."""
    seed: int
    buckets: tuple[np.ndarray, ...] = ()
    """Indices into the view by bucket, (samples of the bucket,) each, by image area; () where all have one shape."""
    parts: tuple[int, ...] = (0,)
    """Number in the store's `parts` of each bucket."""
    _epochs: dict[int, _EpochBatches] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def from_view(cls, view: View, batch_size: int, seed: int) -> FullOrder:
        """Return the order of a view's samples. Those of a single bucket come as those of a plain store do."""
        buckets = view.buckets
        order = np.argsort(buckets, kind="stable")
        parts, starts = np.unique(buckets[order], return_index=True)
        split = tuple(np.split(order, starts[1:])) if len(starts) > 1 else ()
        return cls(len(buckets), batch_size, seed, split, tuple(parts.tolist()) or (0,))

    def __post_init__(self) -> None:
        check_fills_a_batch(self._lengths, self.batch_size)

    @property
    def _lengths(self) -> list[int]:
        return [len(bucket) for bucket in self.buckets] or [self.length]

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches that an epoch has."""
        return sum(length // self.batch_size for length in self._lengths)

    @property
    def left_out(self) -> int:
        """Samples of each epoch that no batch takes: of each bucket less than a batch."""
        return self.length - self.batches_per_epoch * self.batch_size

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        """Return view indices of `count` batches from the `first` on; see `Order.batches`. Sorts a new epoch."""
        pieces, stop = [], first + count
        while first < stop:
            epoch, number = divmod(first, self.batches_per_epoch)
            here = min(stop - first, self.batches_per_epoch - number)
            piece = self._epoch(epoch).indices[number : number + here]
            pieces.append((piece if columns is None else piece[:, columns]).astype(np.int64))
            first += here
        return np.concatenate(pieces) if pieces else np.zeros((0, 0), np.int64)

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        """Return the bucket of a batch, and how many batches of the same epoch are of it; see `Order.shape_run`."""
        if not self.buckets:
            return self.parts[0], most
        epoch, number = divmod(batch, self.batches_per_epoch)
        bucket, run = first_run(self._epoch(epoch).buckets[number : number + most])
        return self.parts[bucket], run

    def look_ahead(self, batch: int, stop: int) -> None:
        """Sort the next epoch in the last eighth of one."""
        epoch, number = divmod(batch, self.batches_per_epoch)
        epoch += number >= self.batches_per_epoch * 7 // 8
        if epoch * self.batches_per_epoch < stop:
            self._epoch(epoch)

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """Return all batches of an epoch, int64 (batches_per_epoch, batch_size)."""
        return self.batches(epoch * self.batches_per_epoch, self.batches_per_epoch)

    def _epoch(self, epoch: int) -> _EpochBatches:
        if (found := self._epochs.get(epoch)) is not None:
            return found
        with self._lock:
            if epoch not in self._epochs:
                made = self._sort(epoch)
                for other in self._epochs.keys() - {epoch - 1}:
                    del self._epochs[other]
                self._epochs[epoch] = made
            return self._epochs[epoch]

    def _sort(self, epoch: int) -> _EpochBatches:
        dtype = np.uint32 if self.length <= 2**32 else np.int64
        if not self.buckets:
            indices = self._cut(epoch_order(self.seed, epoch, self.length))
            return _EpochBatches(indices.astype(dtype), np.zeros(0, np.int64))
        chunks: list[np.ndarray] = []
        buckets: list[int] = []
        for number, bucket in enumerate(self.buckets):
            order = keyed_permutation(f"ditlab.epoch/{self.seed}/{epoch}/{number}", len(bucket))
            batches = self._cut(bucket[order]).astype(dtype)
            chunks += (batches[first : first + CHUNK_BATCHES] for first in range(0, len(batches), CHUNK_BATCHES))
            buckets += [number] * (len(chunks) - len(buckets))
        shuffled = keyed_permutation(f"ditlab.chunks/{self.seed}/{epoch}", len(chunks))
        of_batch = np.repeat(np.array(buckets)[shuffled], [len(chunks[n]) for n in shuffled])
        return _EpochBatches(np.concatenate([chunks[n] for n in shuffled]), of_batch)

    def _cut(self, order: np.ndarray) -> np.ndarray:
        num = len(order) // self.batch_size
        return order[: num * self.batch_size].reshape(num, self.batch_size)
