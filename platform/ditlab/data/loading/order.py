"""Order of samples: a function of (seed, epoch) alone, with a position that counts samples."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ditlab.errors import UserError

CHUNK_BATCHES = 4
"""Consecutive batches of one image size: memory is set up anew for another size."""


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
