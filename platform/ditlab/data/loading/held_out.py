"""Training and held-out rows of a store: by a split of its rows, or by whole blocks, computed when they are read.

Every choice depends on the store alone, never on an experiment's seed: held-out figures of two experiments compare the
same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ditlab.data.permutations import (
    MOST_UNITS,
    Interleaving,
    WindowedShuffle,
    hashed_keys,
    key_of,
    keyed_permutation,
    scaled,
)
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.view import RowSequence
from ditlab.errors import UserError, nearest
from ditlab.spec.data import HoldOutClasses

RUN_ROWS = 16
"""Rows of a run in a small store."""
MOST_RUNS = 1000
"""Runs that a large store is cut into."""
FEWEST_BLOCKS = 256
"""Fewest blocks that a share is taken of, where the store has so many rows: its own blocks are cut for it."""
FEWEST_ROWS = 16
"""Fewest rows of a block that was cut, which share documents or neighbours with one another."""
TINY = 1024
"""Rows of a store below which single rows are held out."""
_KEY = key_of("ditlab.hold-out-blocks")
WINDOW_BLOCKS = 64
"""Blocks of a window of shuffled rows: as many as a few hundred rows are a sample of."""


RowSplit = tuple[np.ndarray, np.ndarray]
"""Training rows and held-out rows of a store, int64."""


def hold_out_rows(length: int, share: float, group: int = 1) -> RowSplit:
    """Return (training rows, held-out rows) of a store of `length` rows, int64; `group` neighbours are never parted.

    A larger share holds out all that a smaller one does. Training rows are ascending; held-out rows stay shuffled, so
    that the first few are a good sample. A share above 0 holds out at least one row.
    """
    assert length % group == 0, (length, group)
    if not share:  # a permutation of a million rows is a third of the time to the first batch
        return np.arange(length), np.empty(0, np.int64)
    train, held_out = _cut(keyed_permutation("ditlab.hold-out", length // group), share)
    if group == 1:
        return train, held_out
    train, held_out = ((groups[:, None] * group + np.arange(group)).reshape(-1) for groups in (train, held_out))
    return train, held_out[keyed_permutation("ditlab.hold-out", len(held_out))]


def _cut(order: np.ndarray, share: float) -> RowSplit:
    num = max(1, round(len(order) * share)) if share > 0 else 0
    is_train = np.ones(len(order), bool)
    is_train[order[:num]] = False
    return np.flatnonzero(is_train), order[:num]


def hold_out_runs(length: int, share: float) -> RowSplit:
    """Return rows as `hold_out_rows` does, of a text store, held out in runs of neighbours.

    Neighbours share documents: of rows held out at random nearly every one would have both in training, of a run of n,
    two rows have one. Runs are RUN_ROWS long or a MOST_RUNS-th of all, and drawn until the share is full.
    """
    runs = np.array_split(np.arange(length), min(MOST_RUNS, max(1, length // RUN_ROWS)))
    order = np.concatenate([runs[run] for run in keyed_permutation("ditlab.hold-out-runs", len(runs))])
    train, held_out = _cut(order, share)
    return train, held_out[keyed_permutation("ditlab.hold-out", len(held_out))]


def hold_out_evenly(lengths: Sequence[int], share: float) -> RowSplit:
    """Return rows as `hold_out_rows` does, of a store with buckets of these lengths, the same share of each.

    The k-th of n rows of a bucket, in an order of its own, is placed at (k + 1/2)/n; rows of lowest place are held out.
    """
    firsts = np.cumsum(lengths) - lengths
    orders = [keyed_permutation(f"ditlab.hold-out/{bucket}", length) for bucket, length in enumerate(lengths)]
    rows = np.concatenate([first + order for first, order in zip(firsts, orders, strict=True)])
    places = np.concatenate([(np.arange(length) + 0.5) / length for length in lengths])
    return _cut(rows[np.lexsort((keyed_permutation("ditlab.hold-out", len(rows)), places))], share)


def hold_out_classes(store: AnyStore, *classes: HoldOutClasses) -> RowSplit:
    """Return (training rows, held-out rows) of a store, int64; rows of any class in `classes` are held out.

    Training rows are ascending, held-out rows shuffled. Raises UserError for a column that holds no class indices, for
    an unknown class, and where no row is left to train on or none is held out.
    """
    held = np.logical_or.reduce([_of_classes(store, each) for each in classes])
    if held.all() and len(classes) > 1:
        raise UserError(
            f"data.hold_out of {' and '.join(each.column for each in classes)} together holds out every row of "
            f"{store.path}, so nothing is left to train on; name fewer classes."
        )
    if held.all():
        raise _useless(store, classes[-1], "holds out every row, so nothing is left to train on")
    rows = np.flatnonzero(held)
    return np.flatnonzero(~held), rows[keyed_permutation("ditlab.hold-out", len(rows))]


def _of_classes(store: AnyStore, classes: HoldOutClasses) -> np.ndarray:
    """Return True for the rows of the classes, (rows,). Raises UserError for classes without any."""
    option = f"data.hold_out.column={classes.column}"
    column = store.columns.get(classes.column)
    if column is None or column.num_classes is None or column.shape:
        indexed = [name for name, each in store.columns.items() if each.num_classes is not None and not each.shape]
        raise UserError(
            f"{option} is no column of class indices in {store.path}; it holds {', '.join(indexed) or 'none'}."
        )
    classes_there: Sequence[int | str] = column.names or range(column.num_classes)
    known = {name: number for number, name in enumerate(classes_there)}
    for value in classes.values:
        if value not in known:
            answer = nearest(str(value), column.names) if column.names else f"known: 0 to {len(known) - 1}"
            raise UserError(f"data.hold_out.values={value} is no class of {classes.column} in {store.path}; {answer}")
    held: np.ndarray = np.isin(store.tensor(classes.column).numpy(), [known[value] for value in classes.values])
    if not held.any():
        raise _useless(store, classes, "holds no row out")
    return held


def _useless(store: AnyStore, classes: HoldOutClasses, problem: str) -> UserError:
    column = store.columns[classes.column]
    names = column.names or range(column.num_classes or 0)
    filled = [str(name) for name, count in zip(names, column.statistics.class_counts or (), strict=False) if count]
    return UserError(
        f"data.hold_out.values={', '.join(map(str, classes.values))} {problem}; {classes.column} has rows of "
        f"{', '.join(filled)} in {store.path}."
    )


def hold_out_layout(layout: BlockLayout) -> BlockLayout:
    """Return the blocks of which some are held out: the store's own, halved until there are enough of them."""
    least = min(layout.block_rows, FEWEST_ROWS if layout.rows >= TINY else 1)
    while layout.num_blocks < FEWEST_BLOCKS and layout.block_rows > least:
        layout = BlockLayout(layout.shard_rows, max(least, layout.block_rows // 2))
    return layout


@dataclass(frozen=True)
class HeldOutBlocks:
    """Held-out blocks of a store: one of each of `held` runs of its blocks, a function of both numbers alone."""

    total: int
    """Blocks of the store, fewer than 2**31."""
    held: int
    """Blocks that are held out."""

    @classmethod
    def of_share(cls, total: int, share: float) -> HeldOutBlocks:
        """Return the choice of a share; a share above 0 holds out at least one block, but never the only one."""
        assert total < 2**31, total
        return cls(total, min(total - 1, max(1, round(total * share))) if share > 0 else 0)

    def held_out(self, numbers: np.ndarray) -> np.ndarray:
        """Return the held-out blocks of the given numbers among them, int64."""
        first = numbers * self.total // self.held
        size = (numbers + 1) * self.total // self.held - first
        return first + scaled(hashed_keys(_KEY, numbers), size.astype(np.uint64)).astype(np.int64)

    def num_held_before(self, blocks: np.ndarray) -> np.ndarray:
        """Return how many blocks are held out before each block (up to `total`), int64."""
        if not self.held:
            return np.zeros_like(blocks)
        run = ((blocks + 1) * self.held - 1) // self.total  # the last that begins at or before the block
        before: np.ndarray = run + (self.held_out(run) < blocks)
        return before

    def training(self, numbers: np.ndarray) -> np.ndarray:
        """Return the blocks to train on of the given numbers among them, int64."""
        if not self.held:
            return numbers
        run = ((numbers + 1) * self.held - 1) // (self.total - self.held)
        blocks = numbers + run  # one block is held out in each run before
        found: np.ndarray = blocks + (blocks >= self.held_out(run))
        return found


class BlockRows:
    """Rows of a plain store, ascending: those of its training blocks, or those of its held-out blocks."""

    def __init__(self, layout: BlockLayout, blocks: HeldOutBlocks, held_out: bool):
        """Take the blocks of a layout (`hold_out_layout`) that are held out, or the others."""
        self._blocks = blocks
        self._held_out = held_out
        self._block_rows = layout.block_rows
        self._shard_first_row = layout.first_rows
        self._shard_first_block = layout.first_blocks
        self._before = self._num_before_blocks(np.append(self._shard_first_block, layout.num_blocks))
        """Selected blocks before each shard, int64 (shards + 1,)."""
        last = self._shard_first_block + layout.shard_blocks - 1
        short = layout.block_rows - layout.rows_of(last)  # only a shard's last block has fewer rows
        rows = np.diff(self._before) * layout.block_rows - self._selected(last) * short
        self._ends = np.cumsum(rows)
        self._starts = self._ends - rows
        self.num_blocks = int(self._before[-1])
        """Blocks that the rows are of."""
        self.key = f"{layout.num_blocks} blocks of {layout.block_rows}, {blocks.held} held out: {held_out}"
        """Text that decides the rows, for a given store."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        shards = np.searchsorted(self._ends, places, side="right")
        number, row = np.divmod(places - self._starts[shards], self._block_rows)
        nth = self._blocks.held_out if self._held_out else self._blocks.training
        blocks = nth(self._before[shards] + number) - self._shard_first_block[shards]
        found: np.ndarray = self._shard_first_row[shards] + blocks * self._block_rows + row
        return found

    def num_before(self, rows: np.ndarray) -> np.ndarray:
        """Return how many of these rows come before each of the store's rows (up to their number), int64."""
        shards = np.searchsorted(self._shard_first_row[1:], rows, side="right")
        number, inside = np.divmod(rows - self._shard_first_row[shards], self._block_rows)
        blocks = self._shard_first_block[shards] + number
        whole = self._num_before_blocks(blocks) - self._before[shards]
        found: np.ndarray = self._starts[shards] + whole * self._block_rows
        # a row count that ends the store has no block of its own, and nothing of one before it
        found += inside * self._selected(np.minimum(blocks, self._blocks.total - 1))
        return found

    def block_starts(self, numbers: np.ndarray) -> np.ndarray:
        """Return the place of the first row of each of these blocks, by its number among them, int64."""
        shards = np.searchsorted(self._before[1:-1], numbers, side="right")
        inside = (numbers - self._before[shards]) * self._block_rows
        found: np.ndarray = np.minimum(self._starts[shards] + inside, self._ends[shards])
        return found

    def _num_before_blocks(self, blocks: np.ndarray) -> np.ndarray:
        held = self._blocks.num_held_before(blocks)
        return held if self._held_out else blocks - held

    def _selected(self, blocks: np.ndarray) -> np.ndarray:
        return self._num_before_blocks(blocks + 1) - self._num_before_blocks(blocks)


class ComputedRows(RowSequence):
    """Rows of a store, ascending, bucket after bucket."""

    def __init__(self, parts: Sequence[BlockRows], layouts: Sequence[BlockLayout]):
        """Join rows of each of a store's parts, whose layouts these are."""
        self.parts = tuple(parts)
        self._layouts = tuple(layouts)
        self.bucket_counts = np.array([len(part) for part in parts])
        self.key = "; ".join(part.key for part in parts)
        self._ends = np.cumsum(self.bucket_counts)
        self.first_of = self._ends - self.bucket_counts
        """Place of each bucket's first row."""
        lengths = [layout.rows for layout in layouts]
        self.store_first = np.cumsum(lengths) - lengths
        """Number in the store of each bucket's first row."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        if len(self.parts) == 1:
            return self.parts[0][places]
        found = np.empty_like(places)
        part_of_place = np.searchsorted(self._ends, places, side="right")
        for part in np.unique(part_of_place).tolist():
            here = part_of_place == part
            found[here] = self.store_first[part] + self.parts[part][places[here] - self.first_of[part]]
        return found

    def in_part(self, part: int) -> ComputedRows:
        return ComputedRows([self.parts[part]], [self._layouts[part]])

    def shuffled(self, text: str) -> ShuffledRows:
        return ShuffledRows(self, text)

    def blocks(self, ranges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (bucket, its blocks that rows of ranges lie in, in order); a range lies in one bucket."""
        part_of_range = np.searchsorted(self._ends, ranges[:, 0], side="right")
        for part in np.unique(part_of_range).tolist():
            rows = self.parts[part]
            layout = self._layouts[part]
            own = ranges[part_of_range == part] - self.first_of[part]
            first = layout.blocks_of(rows[own[:, 0]])
            last = layout.blocks_of(rows[own[:, 1] - 1])
            counts = last + 1 - first
            blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            num = rows.num_before(layout.first_row(blocks + 1)) - rows.num_before(layout.first_row(blocks))
            yield part, blocks[num > 0]


class ShuffledRows(RowSequence):
    """Rows of a store in an order whose first few are a good sample, and lie in few blocks.

    Blocks are permuted, and rows within windows of WINDOW_BLOCKS; buckets are interleaved in proportion.
    """

    def __init__(self, rows: ComputedRows, text: str, numbers: Sequence[int] | None = None):
        """Shuffle rows by a text, and by the numbers of their buckets (None: all of a store's)."""
        self._rows = rows
        self._text = text
        self.bucket_counts = rows.bucket_counts
        self.key = f"{text}: {rows.key}"
        self._numbers = range(len(rows.parts)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        if len(self._rows.parts) == 1:
            return self._rows[self._shuffles[0].at(np.zeros_like(places), places)]
        buckets, numbers = self._buckets.locate(places)
        found = np.empty_like(places)
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            own = self._rows.parts[bucket][self._shuffles[bucket].at(np.zeros_like(numbers[here]), numbers[here])]
            found[here] = self._rows.store_first[bucket] + own
        return found

    def in_part(self, part: int) -> ShuffledRows:
        return ShuffledRows(self._rows.in_part(part), self._text, [self._numbers[part]])

    def shuffled(self, text: str) -> ShuffledRows:
        return ShuffledRows(self._rows, text)

    @cached_property
    def _buckets(self) -> Interleaving:
        return Interleaving(self.bucket_counts.tolist(), self._text)

    @cached_property
    def _shuffles(self) -> list[WindowedShuffle]:
        shuffles = []
        for number, rows in zip(self._numbers, self._rows.parts, strict=True):
            blocks = 1
            while -(-rows.num_blocks // blocks) > MOST_UNITS:
                blocks *= 2
            starts = rows.block_starts(np.append(np.arange(0, rows.num_blocks, blocks), rows.num_blocks))
            window_rows = WINDOW_BLOCKS * blocks * max(1, len(rows) // max(1, rows.num_blocks))
            shuffles.append(WindowedShuffle(starts, f"{self._text}/{number}", 1, window_rows))
        return shuffles


def hold_out_blocks(store: AnyStore, share: float) -> tuple[ComputedRows, ShuffledRows]:
    """Return (training rows, held-out rows) of a store, computed: a share of whole blocks of each bucket is held out.

    The choice depends on the store's layout and the share alone. Training rows are ascending, held-out rows shuffled. A
    share above 0 holds out at least one block of each bucket of several.
    """
    layouts = [part.layout for part in store.parts]
    cut = [hold_out_layout(layout) for layout in layouts]
    chosen = [HeldOutBlocks.of_share(layout.num_blocks, share) for layout in cut]
    train, held_out = (
        ComputedRows([BlockRows(*pair, held) for pair in zip(cut, chosen, strict=True)], layouts)
        for held in (False, True)
    )
    return train, held_out.shuffled("ditlab.held-out")
