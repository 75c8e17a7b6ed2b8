"""Blocks of a store that are held out, by arithmetic alone."""

from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.computed_permutation import hashed_keys, key_of, scaled
from ditlab.data.stores.layout import BlockLayout

FEWEST_BLOCKS = 256
"""Fewest blocks that a share is taken of, where the store has so many rows: its own blocks are cut for it."""
FEWEST_ROWS = 16
"""Fewest rows of a block that was cut, which share documents or neighbours with one another."""
TINY = 1024
"""Rows of a store below which single rows are held out."""
_KEY = key_of("ditlab.hold-out-blocks")


def hold_out_layout(layout: BlockLayout) -> BlockLayout:
    """Return the blocks of which some are held out: the store's own, halved until there are enough of them."""
    least = min(layout.block_rows, FEWEST_ROWS if layout.rows >= TINY else 1)
    while layout.num_blocks < FEWEST_BLOCKS and layout.block_rows > least:
        layout = BlockLayout(layout.shard_rows, max(least, layout.block_rows // 2))
    return layout


@dataclass(frozen=True)
class HeldOutBlocks:
    """Held-out blocks of a store: one of each of `held` runs that its blocks are cut into, all as long, or one longer.

    A function of both numbers alone.
    """

    total: int
    """Blocks of the store, fewer than 2**31."""
    held: int
    """Blocks that are held out."""

    @classmethod
    def of_share(cls, total: int, share: float) -> "HeldOutBlocks":
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
