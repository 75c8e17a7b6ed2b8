"""Global order of samples: a function of (seed, epoch) alone, with a position that counts samples."""

from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.permutation import keyed_permutation
from ditlab.data.stores.view import View
from ditlab.errors import UserError


def epoch_order(seed: int, epoch: int, length: int) -> np.ndarray:
    """Return the order in which an epoch visits `length` samples: an int64 permutation, (length,)."""
    return keyed_permutation(f"ditlab.epoch/{seed}/{epoch}", length)


CHUNK_BATCHES = 4
"""Consecutive batches of one image size: memory is set up anew for another size."""


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """Samples of each global batch: of one shape, none twice in an epoch. Partial batches are dropped.

    Where the data have several image sizes, each size's samples are permuted and cut into batches; the batches, by
    image area, into chunks of CHUNK_BATCHES of one size; and the chunks are shuffled. Each epoch does all of it anew.

    A position counts the samples taken since the start of the run; it is a multiple of the batch size.
    Raises UserError where the data cannot fill one batch.
    """

    length: int
    """Samples in the training view."""
    batch_size: int
    """Global batch: samples of one optimiser step."""
    seed: int
    buckets: tuple[np.ndarray, ...] = ()
    """Indices into the view by bucket, (samples of the bucket,) each, by image area; () where all have one shape."""

    @classmethod
    def from_view(cls, view: View, batch_size: int, seed: int) -> "SampleOrder":
        """Return the order of a view's samples. Those of a single bucket come as those of a plain store do."""
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
        """Whole batches that an epoch has."""
        lengths = map(len, self.buckets) if self.buckets else (self.length,)
        return sum(length // self.batch_size for length in lengths)

    @property
    def left_out(self) -> int:
        """Samples of each epoch that no batch takes: of each bucket less than a batch."""
        return self.length - self.batches_per_epoch * self.batch_size

    def epoch(self, position: int) -> int:
        """Return the epoch that the batch at a position belongs to, from 0."""
        return self.batch_number(position) // self.batches_per_epoch

    def indices(self, position: int) -> np.ndarray:
        """Return the view indices of the batch at a position, int64 (batch_size,). Sorts the epoch at each call."""
        epoch, number = divmod(self.batch_number(position), self.batches_per_epoch)
        return self.epoch_batches(epoch)[number]

    def batch_number(self, position: int) -> int:
        """Return the number of batches taken before a position. Raises ValueError for a position inside a batch."""
        batch, rest = divmod(position, self.batch_size)
        if rest or position < 0:
            raise ValueError(f"position {position} is no multiple of the batch size {self.batch_size}")
        return batch

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """Return all batches of an epoch, int64 (batches_per_epoch, batch_size)."""
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
