"""Sharded order of samples, by lanes and windows, computed batch by batch: `data.order.kind=lanes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.held_out import ComputedRows
from ditlab.data.loading.order import CHUNK_BATCHES, EpochCache, Order, UpcomingRows, check_fills_a_batch, first_run
from ditlab.data.permutations import MOST_UNITS, WindowedShuffle, interleaved, ranks
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.view import View

FINE_UNITS = 64
"""Units of each lane in a store of fewer than two blocks a lane, whose blocks are cut for it."""
FEWEST_UNIT_ROWS = 16
"""Fewest rows of a unit that was cut."""


@dataclass(frozen=True, eq=False)
class ShardedUnits:
    """Training rows of a plain store, or of one bucket, in the units that an epoch permutes."""

    part: int
    """Number in the store's `parts`."""
    starts: np.ndarray
    """View index of each unit's first row, and the one after the last, int64 (units + 1,)."""
    window_rows: int
    """Most rows of a window."""

    def __len__(self) -> int:
        return int(self.starts[-1] - self.starts[0])


class ShardedOrder(Order):
    """Samples of each global batch: lane l of L fills slice l of it, so that a worker reads its own lanes alone.

    In an epoch, units of blocks are permuted and laid end to end; the line is cut into lanes, each read in windows
    within which rows are permuted (`WindowedShuffle`). Each of several image sizes has lanes of its own, and sizes come
    chunk by chunk (`interleaved`). Any batch is computed by itself, in time and memory of at most 2**18 units an epoch
    and, of several sizes, its batches.
    """

    def __init__(self, buckets: Sequence[ShardedUnits], batch_size: int, seed: int, lanes: int):
        """Order the samples of buckets. Raises UserError where these cannot fill one batch of a multiple of `lanes`."""
        assert batch_size % lanes == 0, (batch_size, lanes)
        check_fills_a_batch(map(len, buckets), batch_size)
        self.batch_size = batch_size
        self.seed = seed
        self.lanes = lanes
        self._buckets = tuple(buckets)
        self._slice = batch_size // lanes
        self._batches = [len(bucket) // lanes // self._slice for bucket in buckets]
        self.batches_per_epoch = sum(self._batches)
        self.left_out = sum(map(len, buckets)) - self.batches_per_epoch * batch_size

        def shuffle(epoch: int, bucket: int) -> WindowedShuffle:
            units = self._buckets[bucket]
            text = f"ditlab.lanes/{seed}/{epoch}/{bucket}"
            return WindowedShuffle(units.starts, text, lanes, units.window_rows)

        self._shuffle = EpochCache(shuffle)
        """Function that returns the order of an epoch within a bucket, (epoch, bucket)."""
        self._schedule = EpochCache(self._make_schedule)
        """Function that returns (bucket, number in the bucket) of an epoch's batches, int64 each."""

    @classmethod
    def from_view(cls, view: View, batch_size: int, seed: int, lanes: int, window: int) -> ShardedOrder:
        """Return the order of a view's samples, which must be computed rows. `window`: units of a lane.

        Units are runs of blocks, of the least power of two with at most MOST_UNITS of them in a part. Blocks are never
        parted, so that each is fetched once, unless there are hardly any.
        """
        rows = view.rows
        units = []
        assert isinstance(rows, ComputedRows), "lanes are of computed rows"
        for part, layout in enumerate(part.layout for part in view.store.parts):
            blocks = 1
            cut = layout
            while -(-layout.num_blocks // blocks) > MOST_UNITS:
                blocks *= 2
            if layout.num_blocks < 2 * lanes:
                while cut.num_blocks < FINE_UNITS * lanes and cut.block_rows > FEWEST_UNIT_ROWS:
                    cut = BlockLayout(layout.shard_rows, max(FEWEST_UNIT_ROWS, cut.block_rows // 2))
            begins = cut.first_row(np.append(np.arange(0, cut.num_blocks, blocks), cut.num_blocks))
            starts = rows.num_before(rows.store_first[part] + begins)
            units.append(ShardedUnits(part, starts, window * blocks * layout.block_rows))
        return cls([each for each in units if len(each)], batch_size, seed, lanes)

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        columns = np.arange(self.batch_size) if columns is None else columns
        lanes, inside = np.divmod(columns, self._slice)
        found = np.empty((count, len(columns)), np.int64)
        epochs, numbers = np.divmod(first + np.arange(count), self.batches_per_epoch)
        for epoch in np.unique(epochs).tolist():
            in_epoch = np.flatnonzero(epochs == epoch)
            buckets, turns = self._locate(epoch, numbers[in_epoch])
            for bucket in np.unique(buckets).tolist():
                here = buckets == bucket
                places = turns[here, None] * self._slice + inside
                found[in_epoch[here]] = self._shuffle(epoch, bucket).at(lanes, places)
        return found

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        if len(self._buckets) == 1:
            return self._buckets[0].part, most
        epoch, number = divmod(batch, self.batches_per_epoch)
        buckets, _ = self._locate(epoch, np.arange(number, min(number + most, self.batches_per_epoch)))
        bucket, run = first_run(buckets)
        return self._buckets[bucket].part, run

    def prepare_epoch(self, epoch: int) -> None:
        for bucket in range(len(self._buckets)):
            self._shuffle(epoch, bucket)

    def upcoming(self, batch: int, columns: np.ndarray) -> UpcomingRows:
        """Return the rows of this and the next window of these columns' lanes in each bucket, or of two batches."""
        epoch, number = divmod(batch, self.batches_per_epoch)
        lanes = np.unique(columns // self._slice).tolist()
        shuffles = [self._shuffle(epoch, bucket) for bucket in range(len(self._buckets))]
        # The window that each bucket's next batch begins in; after its last batch, the number of windows.
        windows = [
            shuffle.windows if turn == num else int(shuffle.window_of(np.array(turn * self._slice)))
            for shuffle, turn, num in zip(shuffles, self._num_before(epoch, number), self._batches, strict=True)
        ]
        # How many windows after it are needed soon; -1 where a bucket has no batch.
        further = [
            -(-2 * self._slice // max(1, shuffle.lane_rows // shuffle.windows)) if num else -1
            for shuffle, num in zip(shuffles, self._batches, strict=True)
        ]
        ranges = []
        for ahead in range(1 + max(further)):
            for bucket, window in enumerate(windows):
                shuffle = shuffles[bucket]
                at = window + ahead
                if at >= shuffle.windows:  # the next window is the first one of the next epoch
                    shuffle, at = self._shuffle(epoch + 1, bucket), at - shuffle.windows
                if ahead <= further[bucket] and at < shuffle.windows:
                    ranges += [shuffle.ranges(lane, at) for lane in lanes]
        starts = [shuffle.window_start(np.array(at + 1)) for shuffle, at in zip(shuffles, windows, strict=True)]
        # first batch of each bucket that begins in its next window
        changes = np.array([-(-int(start) // self._slice) for start in starts])
        buckets, turns = self._locate(epoch, np.arange(number, self.batches_per_epoch))
        last = np.flatnonzero(turns + 1 >= changes[buckets])
        until = number + int(last[0]) + 1 if len(last) else self.batches_per_epoch
        return UpcomingRows(np.concatenate(ranges), epoch * self.batches_per_epoch + until)

    def rows_ahead(self, columns: np.ndarray) -> dict[int, int]:
        lanes = len(np.unique(columns // self._slice))
        windows = [1 + -(-2 * self._slice // bucket.window_rows) for bucket in self._buckets]
        return {
            bucket.part: lanes * min(num * bucket.window_rows, len(bucket) // self.lanes)
            for bucket, num in zip(self._buckets, windows, strict=True)
        }

    def _make_schedule(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        buckets = interleaved(self._batches, f"ditlab.lanes/{self.seed}/{epoch}/buckets", CHUNK_BATCHES)
        return buckets, ranks(buckets)

    def _locate(self, epoch: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (bucket, number in the bucket) of batches of an epoch."""
        if len(self._buckets) == 1:
            return np.zeros_like(numbers), numbers
        buckets, turns = self._schedule(epoch)
        return buckets[numbers], turns[numbers]

    def _num_before(self, epoch: int, number: int) -> np.ndarray:
        """Return how many batches of each bucket come before a batch of an epoch, int64 (buckets,)."""
        if len(self._buckets) == 1:
            return np.array([number])
        return np.bincount(self._schedule(epoch)[0][:number], minlength=len(self._buckets))
