"""Order of samples: a function of (seed, epoch) alone, with a position that counts samples."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ditlab.data.permutations import keyed_permutation
from ditlab.data.stores.block_index import group_places
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.view import View
from ditlab.errors import UserError

CHUNK_BATCHES = 4
"""Consecutive batches of one image size: memory is set up again for another size."""


class Order(ABC):
    """Samples of each global batch of a run, none twice in an epoch. Batches are numbered over all
    epochs.

    A position counts the samples taken since the start of the run; it is a multiple of the batch
    size.
    """

    batch_size: int
    """Global batch: samples of one optimiser step."""
    batches_per_epoch: int
    """Whole batches that an epoch has."""
    left_out: int
    """Samples of each epoch that no batch takes."""

    @abstractmethod
    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        """Return view indices of `count` batches from the `first` on, int64 (count, batch_size).

        `columns`: places in the batch that are wanted, int64 (None: all); the result is (count,
        len(columns)). Several threads may call this at once.
        """

    def sources(self) -> Sequence[Order]:
        """Return the orders with epochs of their own that this one takes samples from: itself."""
        return (self,)

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        """Return (number in the store's `parts`, how many batches from this one on are of that
        part's shapes, 1 to `most`)."""
        return 0, most

    def prepare_epoch(self, epoch: int) -> None:  # noqa: B027
        """Compute what the batches of an epoch need, where that takes long."""

    def look_ahead(self, batch: int, stop: int) -> None:
        """Prepare this batch's epoch, in its last eighth the next one that begins before `stop`;
        called on a background thread."""
        epoch, number = divmod(batch, self.batches_per_epoch)
        epoch += number >= self.batches_per_epoch * 7 // 8
        if epoch * self.batches_per_epoch < stop:
            self.prepare_epoch(epoch)

    def announce(self, view: View, batch: int, columns: np.ndarray) -> int:
        """Announce the rows of a view that these columns of coming batches take to stores that
        fetch them ahead.

        Return the first batch for which others are needed. Most orders take rows from everywhere,
        and announce none.
        """
        return sys.maxsize

    def check_room(self, data: Any, store: AnyStore, workers: int) -> None:  # noqa: B027
        """Raise UserError where a node's room for fetched rows (`data.cache`) is less than a worker
        needs.

        `data`: the spec's `data`; `store`: that of the training view; `workers`: most workers of
        the run.
        """

    def batch_number(self, position: int) -> int:
        """Return the number of batches taken before a position. Raises ValueError for a position
        inside a batch.
        """
        batch, rest = divmod(position, self.batch_size)
        if rest or position < 0:
            raise ValueError(
                f"position {position} is no multiple of the batch size {self.batch_size}"
            )
        return batch


class EpochCache:
    """Values by epoch (and more), each made once, by the first thread that needs it; others of far
    epochs go.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        """Keep what `make(epoch, *more)` returns."""
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[tuple[int, ...], Any] = {}

    def __call__(self, *key: int) -> Any:
        """Return the value of a key, (epoch, *more)."""
        found = self._made.get(key)
        if found is None:
            with self._lock:
                found = self._made.get(key)
                if found is None:
                    found = self._make(*key)
                    far = [other for other in self._made if abs(other[0] - key[0]) > 1]
                    for other in far:
                        del self._made[other]
                    self._made[key] = found
        return found


def first_run(numbers: np.ndarray) -> tuple[int, int]:
    """Return the first of some numbers, and how many from it on are equal to it."""
    others = np.flatnonzero(numbers != numbers[0])
    return int(numbers[0]), int(others[0]) if len(others) else len(numbers)


def check_fills_a_batch(lengths: Iterable[int], batch_size: int) -> None:
    """Raise UserError where no bucket of these many training samples fills a batch."""
    lengths = list(lengths)
    largest = max(lengths, default=0)
    total = sum(lengths)
    if largest >= batch_size:
        return
    if total < batch_size:
        raise UserError(
            f"batch.size={batch_size} is larger than the {total} training samples; set "
            f"batch.size to {total} or less, or lower data.hold_out."
        )
    raise UserError(
        f"batch.size={batch_size} is larger than the {largest} training samples of the "
        f"commonest of {len(lengths)} image sizes, and a batch takes images of one size; set "
        f"batch.size to {largest} or less, or import the images again with fewer sizes."
    )


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """Return the order in which an epoch visits `length` samples: an int64 permutation,
    (length,).
    """
    return keyed_permutation(f"ditlab.epoch/{seed}/{epoch}", length)


class FullOrder(Order):
    """Order by one sorted permutation of all samples an epoch (`data.order.kind=full`), in time and
    memory that grow with it.

    Where the data have several image sizes, each size's samples are permuted and cut into batches;
    these, by image area, into chunks of CHUNK_BATCHES of one size; and the chunks are shuffled.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        buckets: Sequence[np.ndarray] = (),
        parts: Sequence[int] = (0,),
    ):
        """Order `length` samples of a training view. Raises UserError where they cannot fill one
        batch.

        `buckets`: indices into the view by bucket, (samples of the bucket,) each, by image area; ()
        where all have one shape. `parts`: number in the store's `parts` of each bucket.
        """
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.buckets = buckets
        self.parts = parts
        self._lengths = [len(bucket) for bucket in buckets] or [length]
        check_fills_a_batch(self._lengths, batch_size)
        self.batches_per_epoch = sum(each // batch_size for each in self._lengths)
        self.left_out = length - self.batches_per_epoch * batch_size
        self._epoch = EpochCache(self._sort)

    @classmethod
    def from_view(cls, view: View, batch_size: int, seed: int) -> FullOrder:
        """Return the order of a view's samples. Those of a single bucket come as those of a plain
        store do.
        """
        counts = view.bucket_counts
        parts = np.flatnonzero(counts).tolist()
        split = [*group_places(view.buckets).values()] if len(parts) > 1 else ()
        return cls(int(counts.sum()), batch_size, seed, split, parts or (0,))

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        pieces = []
        stop = first + count
        while first < stop:
            epoch, number = divmod(first, self.batches_per_epoch)
            here = min(stop - first, self.batches_per_epoch - number)
            piece = self._epoch(epoch)[0][number : number + here]
            if columns is not None:
                piece = piece[:, columns]
            pieces.append(piece.astype(np.int64))
            first += here
        if pieces:
            return np.concatenate(pieces)
        return np.zeros((0, 0), np.int64)

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        if not self.buckets:
            return self.parts[0], most
        epoch, number = divmod(batch, self.batches_per_epoch)
        bucket, run = first_run(self._epoch(epoch)[1][number : number + most])
        return self.parts[bucket], run

    def prepare_epoch(self, epoch: int) -> None:
        self._epoch(epoch)

    def _sort(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the view indices of an epoch's batches, (batches, batch_size), and the bucket of
        each of several.
        """
        dtype = np.uint32 if self.length <= 2**32 else np.int64
        if not self.buckets:
            batches = self._cut(epoch_order(self.seed, epoch, self.length))
            return batches.astype(dtype), np.zeros(0, np.int64)
        chunks: list[np.ndarray] = []
        buckets: list[int] = []
        for number, bucket in enumerate(self.buckets):
            order = keyed_permutation(f"ditlab.epoch/{self.seed}/{epoch}/{number}", len(bucket))
            batches = self._cut(bucket[order]).astype(dtype)
            chunks += (
                batches[first : first + CHUNK_BATCHES]
                for first in range(0, len(batches), CHUNK_BATCHES)
            )
            buckets += [number] * (len(chunks) - len(buckets))
        shuffled = keyed_permutation(f"ditlab.chunks/{self.seed}/{epoch}", len(chunks))
        of_batch = np.repeat(np.array(buckets)[shuffled], [len(chunks[n]) for n in shuffled])
        return np.concatenate([chunks[n] for n in shuffled]), of_batch

    def _cut(self, order: np.ndarray) -> np.ndarray:
        num = len(order) // self.batch_size
        return order[: num * self.batch_size].reshape(num, self.batch_size)
