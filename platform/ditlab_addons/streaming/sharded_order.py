"""Sharded order of samples, by streams and windows, computed batch by batch:
`data.order.kind=interleaved`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ditlab.data.loading.held_out import ComputedRows
from ditlab.data.loading.order import (
    CHUNK_BATCHES,
    EpochCache,
    Order,
    check_fills_a_batch,
    first_run,
)
from ditlab.data.permutations import WindowedShuffle, blocks_of_unit, interleaved, ranks
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import row_bytes
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.values import num_bytes
from ditlab.storage.plain_files import MIB
from ditlab_addons.streaming.streamed_store import StreamedStore

FINE_UNITS = 64
"""Units of each stream in a store of fewer than two blocks a stream, whose blocks are cut for
it.
"""
FEWEST_UNIT_ROWS = 16
"""Fewest rows of a unit that was cut."""


class StreamShuffle(WindowedShuffle):
    """A shuffle that tells what a window of a stream holds before its rows are read."""

    def ranges(self, stream: int, window: int) -> np.ndarray:
        """Return what a window of a stream holds, unordered: ranges (first, stop), int64 (ranges,
        2), by unit.
        """
        first, stop = stream * self.stream_rows + self.window_start(np.array([window, window + 1]))
        if first == stop:
            return np.zeros((0, 2), np.int64)
        begin, last = np.searchsorted(self._ends, [first, stop - 1], side="right")
        units = np.arange(begin, last + 1)
        begins = np.append(0, self._ends)[units]
        found = np.stack([np.maximum(begins, first), np.minimum(self._ends[units], stop)], axis=1)
        found += self._shift[units, None]
        return found[found[:, 0] < found[:, 1]]


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


class UpcomingRows(NamedTuple):
    """Rows that a worker needs soon."""

    ranges: np.ndarray
    """Ranges (first, stop) of view indices, int64 (ranges, 2), in the order of need within each
    bucket.
    """
    until: int
    """First batch for which others are needed."""


class ShardedOrder(Order):
    """Samples of each global batch: stream l of L fills slice l of it, so that a worker reads its
    own streams alone.

    In an epoch, units of blocks are permuted and laid end to end; the line is cut into streams,
    each read in windows within which rows are permuted (`WindowedShuffle`). Each of several image
    sizes has streams of its own, and sizes come chunk by chunk (`interleaved`). Any batch is
    computed by itself, in time and memory of at most 2**18 units an epoch and, of several sizes,
    its batches.
    """

    def __init__(self, buckets: Sequence[ShardedUnits], batch_size: int, seed: int, streams: int):
        """Order the samples of buckets. Raises UserError where these cannot fill one batch of a
        multiple of `streams`.
        """
        assert batch_size % streams == 0, (batch_size, streams)
        check_fills_a_batch(map(len, buckets), batch_size)
        self.batch_size = batch_size
        self.seed = seed
        self.streams = streams
        self._buckets = tuple(buckets)
        self._slice = batch_size // streams
        self._batches = [len(bucket) // streams // self._slice for bucket in buckets]
        self.batches_per_epoch = sum(self._batches)
        self.left_out = sum(map(len, buckets)) - self.batches_per_epoch * batch_size
        self._shuffle = EpochCache(self._make_shuffle)
        """Function that returns the order of an epoch within a bucket, (epoch, bucket)."""
        self._schedule = EpochCache(self._make_schedule)
        """Function that returns (bucket, number in the bucket) of an epoch's batches, int64
        each.
        """

    @classmethod
    def from_view(
        cls, view: View, batch_size: int, seed: int, streams: int, window: int
    ) -> ShardedOrder:
        """Return the order of a view's samples, which must be computed rows. `window`: units of a
        stream.

        Units are runs of blocks, of the least power of two with at most MOST_UNITS of them in a
        part. Blocks are never parted, so that each is fetched once, unless there are hardly any.
        """
        rows = view.rows
        units = []
        assert isinstance(rows, ComputedRows), "streams are of computed rows"
        for number, part in enumerate(view.store.parts):
            layout = part.layout
            blocks = blocks_of_unit(layout.num_blocks)
            cut = layout
            if layout.num_blocks < 2 * streams:
                while cut.num_blocks < FINE_UNITS * streams and cut.block_rows > FEWEST_UNIT_ROWS:
                    cut = BlockLayout(layout.shard_rows, max(FEWEST_UNIT_ROWS, cut.block_rows // 2))
            begins = cut.first_row(np.append(np.arange(0, cut.num_blocks, blocks), cut.num_blocks))
            starts = rows.num_before(rows.store_first[number] + begins)
            units.append(ShardedUnits(number, starts, window * blocks * layout.block_rows))
        return cls([each for each in units if len(each)], batch_size, seed, streams)

    def batches(self, first: int, count: int, columns: np.ndarray | None = None) -> np.ndarray:
        if columns is None:
            columns = np.arange(self.batch_size)
        streams, inside = np.divmod(columns, self._slice)
        found = np.empty((count, len(columns)), np.int64)
        epochs, numbers = np.divmod(first + np.arange(count), self.batches_per_epoch)
        for epoch in np.unique(epochs).tolist():
            in_epoch = np.flatnonzero(epochs == epoch)
            buckets, turns = self._locate(epoch, numbers[in_epoch])
            for bucket in np.unique(buckets).tolist():
                here = buckets == bucket
                places = turns[here, None] * self._slice + inside
                found[in_epoch[here]] = self._shuffle(epoch, bucket).at(streams, places)
        return found

    def shape_run(self, batch: int, most: int) -> tuple[int, int]:
        if len(self._buckets) == 1:
            return self._buckets[0].part, most
        epoch, number = divmod(batch, self.batches_per_epoch)
        buckets, _ = self._locate(
            epoch, np.arange(number, min(number + most, self.batches_per_epoch))
        )
        bucket, run = first_run(buckets)
        return self._buckets[bucket].part, run

    def prepare_epoch(self, epoch: int) -> None:
        for bucket in range(len(self._buckets)):
            self._shuffle(epoch, bucket)

    def announce(self, view: View, batch: int, columns: np.ndarray) -> int:
        upcoming = self.upcoming(batch, columns)
        assert isinstance(view.rows, ComputedRows), "streams are of computed rows"
        for part, blocks in blocks_of_ranges(view.rows, upcoming.ranges):
            view.store.parts[part].expect(blocks)
        return upcoming.until

    def upcoming(self, batch: int, columns: np.ndarray) -> UpcomingRows:
        """Return the rows of this and the next window of these columns' streams in each bucket, or
        of two batches.
        """
        epoch, number = divmod(batch, self.batches_per_epoch)
        streams = np.unique(columns // self._slice).tolist()
        # each bucket's first batch that begins in another window than its next one does
        changes = np.empty(len(self._buckets), np.int64)
        ranges = []
        for bucket, turn in enumerate(self._num_before(epoch, number).tolist()):
            shuffle = self._shuffle(epoch, bucket)
            num = self._batches[bucket]
            window = shuffle.windows
            if turn < num:
                window = int(shuffle.window_of(np.array(turn * self._slice)))
            changes[bucket] = -(-int(shuffle.window_start(np.array(window + 1))) // self._slice)
            further = -(-2 * self._slice // max(1, shuffle.stream_rows // shuffle.windows))
            for ahead in range(1 + further if num else 0):
                epochs, at = divmod(window + ahead, shuffle.windows)
                if epochs < 2:  # of a bucket of few rows two batches take all of the next epoch
                    ranges += [
                        self._shuffle(epoch + epochs, bucket).ranges(stream, at)
                        for stream in streams
                    ]
        buckets, turns = self._locate(epoch, np.arange(number, self.batches_per_epoch))
        last = np.flatnonzero(turns + 1 >= changes[buckets])
        until = number + int(last[0]) + 1 if len(last) else self.batches_per_epoch
        return UpcomingRows(np.concatenate(ranges), epoch * self.batches_per_epoch + until)

    def check_room(self, data: Any, store: AnyStore, workers: int) -> None:
        """Raise UserError where `data.cache` is smaller than the current and the next window of a
        worker's streams.
        """
        streams = -(-max(1, self.batch_size // workers) // self._slice)
        need = 0
        for bucket in self._buckets:
            part = store.parts[bucket.part]
            if isinstance(part, StreamedStore):
                windows = 1 + -(-2 * self._slice // bucket.window_rows)
                rows = min(windows * bucket.window_rows, len(bucket) // self.streams)
                need += streams * rows * row_bytes(part.columns)
        if not need or num_bytes(data.cache) >= need:
            return
        mib = -(-need // MIB)
        raise UserError(
            f"data.cache={data.cache} is smaller than the current and the next window of the "
            f"streams of one worker of {workers}, which take {mib:,} MiB; set data.cache to "
            f"{mib}MiB or more, or lower data.order.window."
        )

    def _make_shuffle(self, epoch: int, bucket: int) -> StreamShuffle:
        units = self._buckets[bucket]
        return StreamShuffle(
            units.starts,
            f"ditlab.lanes/{self.seed}/{epoch}/{bucket}",
            self.streams,
            units.window_rows,
        )

    def _make_schedule(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        buckets = interleaved(
            self._batches, f"ditlab.lanes/{self.seed}/{epoch}/buckets", CHUNK_BATCHES
        )
        return buckets, ranks(buckets)

    def _locate(self, epoch: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (bucket, number in the bucket) of batches of an epoch."""
        if len(self._buckets) == 1:
            return np.zeros_like(numbers), numbers
        buckets, turns = self._schedule(epoch)
        return buckets[numbers], turns[numbers]

    def _num_before(self, epoch: int, number: int) -> np.ndarray:
        """Return how many batches of each bucket come before a batch of an epoch, int64
        (buckets,).
        """
        if len(self._buckets) == 1:
            return np.array([number])
        return np.bincount(self._schedule(epoch)[0][:number], minlength=len(self._buckets))


def blocks_of_ranges(rows: ComputedRows, ranges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (bucket, its blocks that rows of ranges lie in, in order); a range, (first, stop), lies
    in one bucket.
    """
    part_of_range = np.searchsorted(np.cumsum(rows.bucket_counts), ranges[:, 0], side="right")
    for part in np.unique(part_of_range).tolist():
        layout = rows.parts[part].layout
        store_first = rows.store_first[part]
        own = ranges[part_of_range == part]
        first = layout.blocks_of(rows[own[:, 0]] - store_first)
        last = layout.blocks_of(rows[own[:, 1] - 1] - store_first)
        counts = last + 1 - first
        blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        edges = layout.first_row(np.stack([blocks, blocks + 1])) + store_first
        before, after = rows.num_before(edges)
        yield part, blocks[after > before]
