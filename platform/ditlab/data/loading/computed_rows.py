"""Training and held-out rows that are computed when they are read, by whole blocks."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ditlab.data.loading.block_rows import BlockRows
from ditlab.data.loading.held_out_blocks import HeldOutBlocks, hold_out_layout
from ditlab.data.loading.interleaving import Interleaving
from ditlab.data.loading.windowed_shuffle import MOST_UNITS, WindowedShuffle
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.layout import BlockLayout
from ditlab.data.stores.view import RowSequence

WINDOW_BLOCKS = 64
"""Blocks of a window of shuffled rows: as many as a few hundred rows are a sample of."""


class ComputedRows(RowSequence):
    """Rows of a store, ascending, bucket after bucket."""

    def __init__(self, parts: Sequence[BlockRows], layouts: Sequence[BlockLayout]):
        """Join rows of each of a store's parts, whose layouts these are."""
        self.parts, self._layouts = tuple(parts), tuple(layouts)
        self._ends = np.cumsum([len(part) for part in parts])
        self._store_ends = np.cumsum([layout.rows for layout in layouts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the store's rows at places (int64, in [0, len)), int64."""
        if len(self.parts) == 1:
            return self.parts[0][places]
        found, part_of_place = np.empty_like(places), np.searchsorted(self._ends, places, side="right")
        for part in np.unique(part_of_place).tolist():
            here = part_of_place == part
            found[here] = self.store_first(part) + self.parts[part][places[here] - self.first_of(part)]
        return found

    @property
    def bucket_counts(self) -> np.ndarray:
        """Rows of each bucket, int64 (parts,)."""
        return np.array([len(part) for part in self.parts])

    @property
    def key(self) -> str:
        """Text that decides the rows, for a given store."""
        return "; ".join(part.key for part in self.parts)

    def in_part(self, part: int) -> "ComputedRows":
        """Return the rows of one bucket, by their numbers in it."""
        return ComputedRows([self.parts[part]], [self._layouts[part]])

    def first_of(self, part: int) -> int:
        """Return the place of a bucket's first row."""
        return int(self._ends[part]) - len(self.parts[part])

    def store_first(self, part: int) -> int:
        """Return the number in the store of a bucket's first row."""
        return int(self._store_ends[part]) - self._layouts[part].rows

    def shuffled(self, text: str) -> "ShuffledRows":
        """Return the same rows in an order that belongs to a text."""
        return ShuffledRows(self, text)

    def blocks(self, ranges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (bucket, its blocks that rows of ranges lie in, in order); a range lies in one bucket."""
        part_of_range = np.searchsorted(self._ends, ranges[:, 0], side="right")
        for part in np.unique(part_of_range).tolist():
            rows, layout = self.parts[part], self._layouts[part]
            own = ranges[part_of_range == part] - self.first_of(part)
            first, last = layout.blocks_of(rows[own[:, 0]]), layout.blocks_of(rows[own[:, 1] - 1])
            counts = last + 1 - first
            blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            num = rows.num_before(layout.first_row(blocks + 1)) - rows.num_before(layout.first_row(blocks))
            yield part, blocks[num > 0]


class ShuffledRows(RowSequence):
    """Rows of a store in an order whose first few are a good sample, and lie in few blocks.

    Blocks are permuted; windows of WINDOW_BLOCKS come one after the other, with the rows of each permuted. Buckets are
    interleaved in proportion.
    """

    def __init__(self, rows: ComputedRows, text: str, numbers: Sequence[int] | None = None):
        """Shuffle rows by a text, and by the numbers of their buckets (None: all of a store's)."""
        self._rows, self._text = rows, text
        self._numbers = range(len(rows.parts)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the store's rows at places (int64, in [0, len)), int64."""
        if len(self._rows.parts) == 1:
            return self._rows[self._shuffles[0].at(np.zeros_like(places), places)]
        buckets, numbers = self._buckets.locate(places)
        found = np.empty_like(places)
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            own = self._rows.parts[bucket][self._shuffles[bucket].at(np.zeros_like(numbers[here]), numbers[here])]
            found[here] = self._rows.store_first(bucket) + own
        return found

    @property
    def bucket_counts(self) -> np.ndarray:
        """Rows of each bucket, int64 (parts,)."""
        return self._rows.bucket_counts

    @property
    def key(self) -> str:
        """Text that decides the rows, for a given store."""
        return f"{self._text}: {self._rows.key}"

    def in_part(self, part: int) -> "ShuffledRows":
        """Return the rows of one bucket, by their numbers in it."""
        return ShuffledRows(self._rows.in_part(part), self._text, [self._numbers[part]])

    def shuffled(self, text: str) -> "ShuffledRows":
        """Return the same rows in an order that belongs to another text."""
        return ShuffledRows(self._rows, text)

    @cached_property
    def _buckets(self) -> Interleaving:
        return Interleaving(self.bucket_counts.tolist(), self._text)

    @cached_property
    def _shuffles(self) -> list[WindowedShuffle]:
        pairs = zip(self._numbers, self._rows.parts, strict=True)
        return [self._shuffle(part, f"{self._text}/{number}") for number, part in pairs]

    def _shuffle(self, rows: BlockRows, text: str) -> WindowedShuffle:
        blocks = 1
        while -(-rows.num_blocks // blocks) > MOST_UNITS:
            blocks *= 2
        starts = rows.block_starts(np.append(np.arange(0, rows.num_blocks, blocks), rows.num_blocks))
        return WindowedShuffle(starts, text, 1, WINDOW_BLOCKS * blocks * max(1, len(rows) // max(1, rows.num_blocks)))


def hold_out_blocks(store: AnyStore, share: float) -> tuple[ComputedRows, ShuffledRows]:
    """Return (training rows, held-out rows) of a store, computed: whole blocks are held out, a share of each bucket's.

    The choice depends on the store's layout and the share alone, never on an experiment's seed. Training rows are
    ascending; held-out rows are shuffled. A share above 0 holds out at least one block of each bucket of several.
    """
    layouts = [part.layout for part in store.parts]
    cut = [hold_out_layout(layout) for layout in layouts]
    chosen = [HeldOutBlocks.of_share(layout.num_blocks, share) for layout in cut]
    train, held_out = (
        ComputedRows([BlockRows(*pair, held) for pair in zip(cut, chosen, strict=True)], layouts)
        for held in (False, True)
    )
    return train, held_out.shuffled("ditlab.held-out")
