"""Training and held-out rows of a store: by a split of its rows, or by whole blocks, computed when
they are read. Rows of equal contents (`stores.duplicates`) are on one side.

Every choice depends on the store alone, never on an experiment's seed: held-out figures of two
experiments compare the same samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ditlab.data.permutations import (
    WindowedShuffle,
    blocks_of_unit,
    hashed_keys,
    interleaved,
    key_of,
    keyed_permutation,
    ranks,
    scaled,
)
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.duplicates import NO_DUPLICATES, Duplicates
from ditlab.data.stores.view import RowNumbers, RowSequence
from ditlab.errors import UserError, nearest
from ditlab.spec.data import HoldOutClasses

RUN_ROWS = 16
"""Rows of a run in a small store."""
MOST_RUNS = 1000
"""Runs that a large store is cut into."""
FEWEST_BLOCKS = 256
"""Fewest blocks that a share is taken of, where the store has so many rows: its own blocks are cut
for it.
"""
FEWEST_ROWS = 16
"""Fewest rows of a block that was cut, which share documents or neighbours with one another."""
TINY = 1024
"""Rows of a store below which single rows are held out."""
_KEY = key_of("ditlab.hold-out-blocks")
WINDOW_BLOCKS = 64
"""Blocks of a window of shuffled rows: as many as a few hundred rows are a sample of."""


RowSplit = tuple[np.ndarray, np.ndarray]
"""Training rows and held-out rows of a store, int64."""


def hold_out_rows(
    length: int, share: float, group: int = 1, duplicates: Duplicates = NO_DUPLICATES
) -> RowSplit:
    """Return (training rows, held-out rows) of a store of `length` rows, int64; `group` neighbours
    are never parted, nor are duplicates, where `group` is 1.

    A larger share holds out all that a smaller one does. Training rows are ascending; held-out rows
    stay shuffled, so that the first few are a good sample. A share above 0 holds out at least one
    row.
    """
    assert length % group == 0, (length, group)
    if not share:  # a permutation of a million rows is a third of the time to the first batch
        return np.arange(length), np.empty(0, np.int64)
    order = keyed_permutation("ditlab.hold-out", length // group)
    if group == 1:
        return _cut(order, share, duplicates)
    train, held_out = (
        (groups[:, None] * group + np.arange(group)).reshape(-1) for groups in _cut(order, share)
    )
    return train, held_out[keyed_permutation("ditlab.hold-out", len(held_out))]


def _cut(order: np.ndarray, share: float, duplicates: Duplicates = NO_DUPLICATES) -> RowSplit:
    """Hold out the first rows of an order, and the duplicates of the last of them."""
    num = 0
    if share > 0:
        num = max(1, round(len(order) * share))
    is_train = np.ones(len(order), bool)
    if not (num and len(duplicates)):
        is_train[order[:num]] = False
        return np.flatnonzero(is_train), order[:num]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place[duplicates.rows] = place[duplicates.firsts]
    together = np.argsort(place, kind="stable")
    is_repeat = np.zeros(len(order), bool)
    is_repeat[duplicates.rows] = True
    num += int(np.argmin(np.append(is_repeat[together[num:]], False)))
    is_train[together[:num]] = False
    return np.flatnonzero(is_train), order[~is_train[order]]


def hold_out_runs(length: int, share: float) -> RowSplit:
    """Return rows as `hold_out_rows` does, of a text store, held out in runs of neighbours.

    Neighbours share documents: of rows held out at random nearly every one would have both in
    training, of a run of n, two rows have one. Runs are RUN_ROWS long or a MOST_RUNS-th of all, and
    drawn until the share is full.
    """
    runs = np.array_split(np.arange(length), min(MOST_RUNS, max(1, length // RUN_ROWS)))
    order = np.concatenate(
        [runs[run] for run in keyed_permutation("ditlab.hold-out-runs", len(runs))]
    )
    train, held_out = _cut(order, share)
    return train, held_out[keyed_permutation("ditlab.hold-out", len(held_out))]


def hold_out_evenly(
    lengths: Sequence[int], share: float, duplicates: Duplicates = NO_DUPLICATES
) -> RowSplit:
    """Return rows as `hold_out_rows` does, of a store with buckets of these lengths, the same share
    of each.

    The k-th of n rows of a bucket, in an order of its own, is placed at (k + 1/2)/n; rows of lowest
    place are held out.
    """
    firsts = np.cumsum(lengths) - lengths
    orders = [
        keyed_permutation(f"ditlab.hold-out/{bucket}", length)
        for bucket, length in enumerate(lengths)
    ]
    rows = np.concatenate([first + order for first, order in zip(firsts, orders, strict=True)])
    places = np.concatenate([(np.arange(length) + 0.5) / length for length in lengths])
    order = rows[np.lexsort((keyed_permutation("ditlab.hold-out", len(rows)), places))]
    return _cut(order, share, duplicates)


def hold_out_classes(store: AnyStore, *classes: HoldOutClasses) -> RowSplit:
    """Return (training rows, held-out rows) of a store, int64; rows of any class in `classes` are
    held out.

    Training rows are ascending, held-out rows shuffled. Raises UserError for a column that holds no
    class indices, for an unknown class, and where no row is left to train on or none is held out.
    """
    held = np.logical_or.reduce([_of_classes(store, each) for each in classes])
    if held.all() and len(classes) > 1:
        raise UserError(
            f"data.hold_out of {' and '.join(each.column for each in classes)} together holds "
            f"out every row of {store.path}, so nothing is left to train on; name fewer "
            "classes."
        )
    if held.all():
        raise _useless(store, classes[-1], "holds out every row, so nothing is left to train on")
    rows = np.flatnonzero(held)
    return np.flatnonzero(~held), rows[keyed_permutation("ditlab.hold-out", len(rows))]


def _of_classes(store: AnyStore, classes: HoldOutClasses) -> np.ndarray:
    """Return True for the rows of the classes, (rows,). Raises UserError for classes without
    any.
    """
    option = f"data.hold_out.column={classes.column}"
    column = store.columns.get(classes.column)
    if column is None or column.num_classes is None or column.shape:
        indexed = [
            name
            for name, each in store.columns.items()
            if each.num_classes is not None and not each.shape
        ]
        raise UserError(
            f"{option} is no column of class indices in {store.path}; it holds "
            f"{', '.join(indexed) or 'none'}."
        )
    classes_there: Sequence[int | str] = column.names or range(column.num_classes)
    known = {name: number for number, name in enumerate(classes_there)}
    for value in classes.values:
        if value not in known:
            if column.names:
                answer = nearest(str(value), column.names)
            else:
                answer = f"known: 0 to {len(known) - 1}"
            raise UserError(
                f"data.hold_out.values={value} is no class of {classes.column} in "
                f"{store.path}; {answer}"
            )
    held: np.ndarray = np.isin(
        store.tensor(classes.column).numpy(), [known[value] for value in classes.values]
    )
    if not held.any():
        raise _useless(store, classes, "holds no row out")
    return held


def _useless(store: AnyStore, classes: HoldOutClasses, problem: str) -> UserError:
    column = store.columns[classes.column]
    names = column.names or range(column.num_classes or 0)
    filled = [
        str(name)
        for name, count in zip(names, column.statistics.class_counts or (), strict=False)
        if count
    ]
    return UserError(
        f"data.hold_out.values={', '.join(map(str, classes.values))} {problem}; "
        f"{classes.column} has rows of {', '.join(filled)} in {store.path}."
    )


def hold_out_layout(layout: BlockLayout) -> BlockLayout:
    """Return the blocks of which some are held out: the store's own, halved until there are enough
    of them.
    """
    fewest = FEWEST_ROWS if layout.rows >= TINY else 1
    least = min(layout.block_rows, fewest)
    while layout.num_blocks < FEWEST_BLOCKS and layout.block_rows > least:
        layout = BlockLayout(layout.shard_rows, max(least, layout.block_rows // 2))
    return layout


def held_out_blocks(total: int, held: int) -> np.ndarray:
    """Return the held-out blocks of a store, one of each of `held` runs of its blocks, int64: a
    function of both numbers alone."""
    numbers = np.arange(held)
    first = numbers * total // max(1, held)
    size = (numbers + 1) * total // max(1, held) - first
    found: np.ndarray = first + scaled(hashed_keys(_KEY, numbers), size.astype(np.uint64)).astype(
        np.int64
    )
    return found


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Rows of some blocks of a plain store, ascending."""

    layout: BlockLayout
    """All blocks of the store."""
    first_rows: np.ndarray
    """First row of each of its blocks that the rows are of, or of the parts into which these were
    cut, int64.
    """
    sizes: np.ndarray
    """Rows of each, int64."""
    key: str
    """Text that decides the rows, for a given store."""


class ComputedRows(RowSequence):
    """Rows of a store, ascending, bucket after bucket, which are known by their blocks."""

    def __init__(self, parts: Sequence[BlockRows]):
        """Join rows of each of a store's parts."""
        self.parts = tuple(parts)
        self.bucket_counts = np.array([part.sizes.sum() for part in parts])
        self.key = "; ".join(part.key for part in parts)
        lengths = [part.layout.rows for part in parts]
        self.store_first = np.cumsum(lengths) - lengths
        """Number in the store of each bucket's first row."""
        self._first_rows = np.concatenate(
            [part.first_rows + first for part, first in zip(parts, self.store_first, strict=True)]
        )
        self._sizes = np.concatenate([part.sizes for part in parts])
        self._starts = np.cumsum(self._sizes) - self._sizes
        """Place of the first row of each block."""

    def __len__(self) -> int:
        return int(self.bucket_counts.sum())

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        blocks = np.searchsorted(self._starts, places, side="right") - 1
        found: np.ndarray = self._first_rows[blocks] + places - self._starts[blocks]
        return found

    def num_before(self, rows: np.ndarray) -> np.ndarray:
        """Return how many of these rows come before each of the store's rows (up to their number),
        int64.
        """
        blocks = np.maximum(np.searchsorted(self._first_rows, rows, side="right") - 1, 0)
        found: np.ndarray = self._starts[blocks] + np.clip(
            rows - self._first_rows[blocks], 0, self._sizes[blocks]
        )
        return found

    def without(self, rows: np.ndarray) -> ComputedRows:
        """Return these rows but some of them, the store's (int64, ascending)."""
        parts = []
        for part, first in zip(self.parts, self.store_first.tolist(), strict=True):
            dropped = rows[(rows >= first) & (rows < first + part.layout.rows)] - first
            firsts = np.sort(np.concatenate([part.first_rows, dropped + 1]))
            stops = np.sort(np.concatenate([part.first_rows + part.sizes, dropped]))
            is_some = stops > firsts
            digest = hashlib.sha256(dropped.tobytes()).hexdigest()
            parts.append(
                BlockRows(
                    part.layout,
                    firsts[is_some],
                    (stops - firsts)[is_some],
                    f"{part.key}, without {digest}",
                )
            )
        return ComputedRows(parts)

    def in_part(self, part: int) -> ComputedRows:
        return ComputedRows([self.parts[part]])

    def shuffled(self, text: str) -> ShuffledRows:
        return ShuffledRows(self, text)


class ShuffledRows(RowSequence):
    """Rows of a store in an order whose first few are a good sample, and lie in few blocks.

    Blocks are permuted, and rows within windows of WINDOW_BLOCKS; buckets are interleaved in
    proportion.
    """

    def __init__(self, rows: ComputedRows, text: str, numbers: Sequence[int] | None = None):
        """Shuffle rows by a text, and by the numbers of their buckets (None: all of a store's)."""
        self._rows = rows
        self._text = text
        self.bucket_counts = rows.bucket_counts
        self.key = f"{text}: {rows.key}"
        if numbers is None:
            numbers = range(len(rows.parts))
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        if len(self._rows.parts) == 1:
            return self._rows[self._shuffles[0].at(np.zeros_like(places), places)]
        buckets = self._buckets[places]
        numbers = self._turns[places]
        found = np.empty_like(places)
        first_of = np.cumsum(self.bucket_counts) - self.bucket_counts
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            found[here] = first_of[bucket] + self._shuffles[bucket].at(
                np.zeros_like(numbers[here]), numbers[here]
            )
        return self._rows[found]

    def in_part(self, part: int) -> ShuffledRows:
        return ShuffledRows(self._rows.in_part(part), self._text, [self._numbers[part]])

    def shuffled(self, text: str) -> ShuffledRows:
        return ShuffledRows(self._rows, text)

    @cached_property
    def _buckets(self) -> np.ndarray:
        """Bucket at each place."""
        return interleaved(self.bucket_counts.tolist(), self._text)

    @cached_property
    def _turns(self) -> np.ndarray:
        """Number of each place among those of its bucket."""
        return ranks(self._buckets)

    @cached_property
    def _shuffles(self) -> list[WindowedShuffle]:
        shuffles = []
        for number, part in zip(self._numbers, self._rows.parts, strict=True):
            num = len(part.sizes)
            blocks = blocks_of_unit(num)
            ends = np.append(0, np.cumsum(part.sizes))
            starts = ends[np.append(np.arange(0, num, blocks), num)]
            window_rows = WINDOW_BLOCKS * blocks * max(1, int(ends[-1]) // max(1, num))
            shuffles.append(WindowedShuffle(starts, f"{self._text}/{number}", 1, window_rows))
        return shuffles


def hold_out_blocks(store: AnyStore, share: float) -> tuple[ComputedRows, ShuffledRows]:
    """Return (training rows, held-out rows) of a store, computed: a share of whole blocks of each
    bucket is held out.

    The choice depends on the store's layout and the share alone. Training rows are ascending,
    held-out rows shuffled. A share above 0 holds out at least one block of each bucket of several,
    but never the only one.
    """
    train: list[BlockRows] = []
    held_out: list[BlockRows] = []
    for layout in (part.layout for part in store.parts):
        cut = hold_out_layout(layout)
        num = 0
        if share > 0:
            num = min(cut.num_blocks - 1, max(1, round(cut.num_blocks * share)))
        held = held_out_blocks(cut.num_blocks, num)
        others = np.setdiff1d(np.arange(cut.num_blocks), held)
        for rows, chosen, is_held in ((train, others, False), (held_out, held, True)):
            key = f"{cut.num_blocks} blocks of {cut.block_rows}, {num} held out: {is_held}"
            rows.append(BlockRows(layout, cut.first_row(chosen), cut.rows_of(chosen), key))
    return ComputedRows(train), ComputedRows(held_out).shuffled("ditlab.held-out")


def without_duplicates(train: RowNumbers, duplicates: Duplicates) -> RowNumbers:
    """Return training rows, ascending, without those whose content is held out.

    Rows of a store that are not in training are held out.
    """
    if not len(duplicates):
        return train

    def num_before(rows: np.ndarray) -> np.ndarray:
        if isinstance(train, ComputedRows):
            return train.num_before(rows)
        assert isinstance(train, np.ndarray), "other sequences are held-out rows"
        return np.searchsorted(train, rows)

    rows = np.concatenate([duplicates.rows, np.unique(duplicates.firsts)])
    contents = np.concatenate([duplicates.firsts, np.unique(duplicates.firsts)])
    is_held_out = num_before(rows + 1) == num_before(rows)
    is_dropped = np.isin(contents, contents[is_held_out]) & ~is_held_out
    dropped = np.sort(rows[is_dropped])
    if not len(dropped):
        return train
    if isinstance(train, ComputedRows):
        return train.without(dropped)
    assert isinstance(train, np.ndarray), "other sequences are held-out rows"
    return train[~np.isin(train, dropped)]
