"""Rows of some of a store's blocks, in memory that grows with the number of shards alone."""

import numpy as np

from ditlab.data.loading.held_out_blocks import HeldOutBlocks
from ditlab.data.stores.layout import BlockLayout


class BlockRows:
    """Rows of a plain store, ascending: those of its training blocks, or those of its held-out blocks."""

    def __init__(self, layout: BlockLayout, blocks: HeldOutBlocks, held_out: bool):
        """Take the blocks of a layout (`hold_out_layout`) that are held out, or the others."""
        self._blocks, self._held_out = blocks, held_out
        self._block_rows, self._shard_rows = layout.block_rows, layout.shard_rows
        self._shard_first_row = np.cumsum(layout.shard_rows) - layout.shard_rows
        ends = np.cumsum(layout.shard_blocks)
        self._shard_first_block = ends - layout.shard_blocks
        self._before = self._num_before_blocks(np.append(self._shard_first_block, layout.num_blocks))
        """Selected blocks before each shard, int64 (shards + 1,)."""
        last = ends - 1
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
        """Return the store's rows at places (int64, in [0, len)), int64."""
        shards = self._shards(self._ends, places)
        number, row = np.divmod(places - self._starts[shards], self._block_rows)
        blocks = self._nth(self._before[shards] + number) - self._shard_first_block[shards]
        found: np.ndarray = self._shard_first_row[shards] + blocks * self._block_rows + row
        return found

    def num_before(self, rows: np.ndarray) -> np.ndarray:
        """Return how many of these rows come before each of the store's rows (up to their number), int64."""
        shards = np.minimum(self._shards(self._shard_first_row + self._shard_rows, rows), len(self._ends) - 1)
        number, inside = np.divmod(rows - self._shard_first_row[shards], self._block_rows)
        blocks = self._shard_first_block[shards] + number
        whole = self._num_before_blocks(blocks) - self._before[shards]
        found: np.ndarray = self._starts[shards] + whole * self._block_rows
        # a row count that ends the store has no block of its own, and nothing of one before it
        found += inside * self._selected(np.minimum(blocks, self._blocks.total - 1))
        return found

    def block_starts(self, numbers: np.ndarray) -> np.ndarray:
        """Return the place of the first row of each of these blocks, by its number among them, int64."""
        shards = np.minimum(self._shards(self._before[1:], numbers), len(self._ends) - 1)
        inside = (numbers - self._before[shards]) * self._block_rows
        found: np.ndarray = np.minimum(self._starts[shards] + inside, self._ends[shards])
        return found

    def _shards(self, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(ends, numbers, side="right") if len(ends) > 1 else np.zeros_like(numbers)

    def _num_before_blocks(self, blocks: np.ndarray) -> np.ndarray:
        held = self._blocks.num_held_before(blocks)
        return held if self._held_out else blocks - held

    def _selected(self, blocks: np.ndarray) -> np.ndarray:
        return self._num_before_blocks(blocks + 1) - self._num_before_blocks(blocks)

    def _nth(self, numbers: np.ndarray) -> np.ndarray:
        return self._blocks.held_out(numbers) if self._held_out else self._blocks.training(numbers)
