"""Layout of a store: its rows in blocks, in memory that grows with the number of shards alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCK_BYTES = 4 * 2**20
"""Size of a block: one request of an object store, whose latency of 50 ms is then little beside the transfer."""
WHOLE_BYTES = 64 * 2**20
"""Most bytes of a store that is written as a single block, and of one that is verified whole when it is opened."""


def block_rows(row_bytes: int) -> int:
    """Return the rows of a block, by the bytes of a row."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Rows of a store, cut into blocks: shard by shard, `block_rows` each; a shard's last block may have fewer."""

    shard_rows: np.ndarray
    """Rows of each shard, int64 (shards,), each at least 1."""
    block_rows: int
    """Rows of a whole block."""

    @classmethod
    def of(cls, shard_rows: Sequence[int], block_rows: int) -> "BlockLayout":
        """Return the layout of shards with these numbers of rows."""
        return cls(np.asarray(shard_rows, np.int64), block_rows)

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_blocks(self) -> int:
        """Blocks of all shards."""
        return int(self._block_ends[-1]) if len(self._block_ends) else 0

    @cached_property
    def shard_blocks(self) -> np.ndarray:
        """Blocks of each shard, int64 (shards,)."""
        return -(-self.shard_rows // self.block_rows)

    def blocks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of the block that holds each row, int64."""
        shards = np.searchsorted(self._ends, rows, side="right")
        inside = (rows - (self._ends[shards] - self.shard_rows[shards])) // self.block_rows
        blocks: np.ndarray = self._block_ends[shards] - self.shard_blocks[shards] + inside
        return blocks

    def shard_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of the shard that holds each block, int64."""
        return np.searchsorted(self._block_ends, blocks, side="right")

    def first_row(self, blocks: np.ndarray) -> np.ndarray:
        """Return the first row of each block, int64; for `num_blocks` itself: the number of rows."""
        shards = np.minimum(self.shard_of(blocks), len(self.shard_rows) - 1)
        inside = blocks - (self._block_ends[shards] - self.shard_blocks[shards])
        first: np.ndarray = self._ends[shards] - self.shard_rows[shards]
        return first + np.minimum(inside * self.block_rows, self.shard_rows[shards])

    def rows_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of rows of each block, int64."""
        rows: np.ndarray = self.first_row(blocks + 1) - self.first_row(blocks)
        return rows

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.shard_rows)

    @cached_property
    def _block_ends(self) -> np.ndarray:
        return np.cumsum(self.shard_blocks)
