"""The global order of samples: a function of (seed, epoch) alone, with a position that is a count of samples."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ditlab.errors import UserError

if TYPE_CHECKING:
    from ditlab.data.stores.view import View


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """The order in which an epoch visits `length` samples: an int64 permutation, (length,).

    Sorts `length` raw 64-bit words of Philox (Salmon et al. 2011), keyed by BLAKE2b of (seed, epoch). NumPy promises
    its bit generators' raw streams for good, and promises no such thing of `Generator.permutation`.
    """
    return keyed_permutation(f"ditlab.epoch/{seed}/{epoch}", length)


def keyed_permutation(key: str, length: int) -> np.ndarray:
    """The permutation of `length` items, int64 (length,), that belongs to a text."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    words = np.random.Philox(key=np.frombuffer(digest, "<u8")).random_raw(length)
    # The low bits give way to the item's number: sorting such words is a tenth of the time of argsort, and as no two
    # are equal, every sorting algorithm gives the same order. 64 - log2(length) random bits are left to each.
    low = np.uint64((1 << length.bit_length()) - 1)
    words &= ~low
    words |= np.arange(length, dtype=np.uint64)
    words.sort()
    words &= low
    return words.view(np.int64)


CHUNK_BATCHES = 4
"""Batches of one image size that follow each other: memory is set up anew for another size."""


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """Which samples each global batch takes: of one shape, none twice in an epoch. Partial batches are dropped.

    Where the data have several image sizes, each size's samples are permuted and cut into batches; the batches, by
    image area, into chunks of CHUNK_BATCHES of one size; and the chunks are shuffled. All of it anew in each epoch.

    A position counts the samples taken since the start of the run; it is a multiple of the batch size.
    Raises UserError where the data cannot fill one batch.
    """

    length: int
    """Samples in the view that is trained on."""
    batch_size: int
    """Global batch: samples of one optimiser step."""
    seed: int
    buckets: tuple[np.ndarray, ...] = ()
    """Indices into the view by bucket, (samples of the bucket,) each, by image area; () where all have one shape."""

    @classmethod
    def of(cls, view: "View", batch_size: int, seed: int) -> "SampleOrder":
        """The order of a view's samples. Those of a single bucket come as those of a plain store do."""
        buckets = view.buckets
        order = np.argsort(buckets, kind="stable")
        starts = np.unique(buckets[order], return_index=True)[1][1:]
        return cls(len(buckets), batch_size, seed, tuple(np.split(order, starts)) if len(starts) else ())

    def __post_init__(self) -> None:
        if self.length < self.batch_size:
            raise UserError(
                f"batch.size={self.batch_size} is larger than the {self.length} training samples; set batch.size to "
                f"{self.length} or less, or lower data.hold_out."
            )
        if not self.batches_per_epoch:
            most = max(map(len, self.buckets))
            raise UserError(
                f"batch.size={self.batch_size} is larger than the {most} training samples of the commonest of "
                f"{len(self.buckets)} image sizes, and a batch takes images of one size; set batch.size to {most} or "
                "less, or import the images again with fewer sizes."
            )

    @property
    def batches_per_epoch(self) -> int:
        lengths = map(len, self.buckets) if self.buckets else (self.length,)
        return sum(length // self.batch_size for length in lengths)

    @property
    def left_out(self) -> int:
        """Samples of each epoch that no batch takes: of each bucket less than a batch."""
        return self.length - self.batches_per_epoch * self.batch_size

    def epoch(self, position: int) -> int:
        """The epoch that the batch at a position belongs to, from 0."""
        return self.batch_number(position) // self.batches_per_epoch

    def indices(self, position: int) -> np.ndarray:
        """Indices into the view of the batch at a position, int64 (batch_size,). Sorts the epoch at each call."""
        epoch, number = divmod(self.batch_number(position), self.batches_per_epoch)
        return self.epoch_batches(epoch)[number]

    def batch_number(self, position: int) -> int:
        """How many batches were taken before a position."""
        batch, rest = divmod(position, self.batch_size)
        if rest or position < 0:
            raise ValueError(f"position {position} is no multiple of the batch size {self.batch_size}")
        return batch

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """All batches of an epoch, int64 (batches_per_epoch, batch_size)."""
        if not self.buckets:
            return self._batches(epoch_order(self.seed, epoch, self.length))
        chunks: list[np.ndarray] = []
        for number, bucket in enumerate(self.buckets):
            order = keyed_permutation(f"ditlab.epoch/{self.seed}/{epoch}/{number}", len(bucket))
            batches = self._batches(bucket[order])
            chunks += (batches[first : first + CHUNK_BATCHES] for first in range(0, len(batches), CHUNK_BATCHES))
        return np.concatenate([chunks[n] for n in keyed_permutation(f"ditlab.chunks/{self.seed}/{epoch}", len(chunks))])

    def _batches(self, order: np.ndarray) -> np.ndarray:
        num = len(order) // self.batch_size
        return order[: num * self.batch_size].reshape(num, self.batch_size)


def worker_micro_indices(rank: int, world: int, batch_size: int, micro_size: int) -> range:
    """Global indices of the micro-batches of one worker of `world`: a contiguous run of M/world of them.

    Raises UserError where the micro-batches cannot be shared out evenly.
    """
    num, rest = divmod(batch_size, micro_size)
    if rest:
        raise UserError(
            f"batch.size={batch_size} is no multiple of batch.micro={micro_size}; set batch.micro to a divisor of it."
        )
    if num % world:
        raise UserError(
            f"batch.size={batch_size} makes {num} micro-batches of batch.micro={micro_size}, which {world} workers "
            "cannot share evenly; change batch.size, batch.micro or resources.workers."
        )
    each = num // world
    return range(rank * each, (rank + 1) * each)
