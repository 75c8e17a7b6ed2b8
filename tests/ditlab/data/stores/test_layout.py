"""The layout of a store against the same rows written out one by one."""

import numpy as np
import pytest

from ditlab.data.stores.block_index import BLOCK_BYTES, BlockLayout, block_rows


@pytest.mark.parametrize(
    ("shard_rows", "size"), [([7, 3, 10, 1], 3), ([5], 5), ([4, 4], 1), ([1, 1, 1], 8)]
)
def test_rows_and_blocks_are_those_written_out(shard_rows, size):
    layout = BlockLayout(shard_rows, size)
    blocks = []
    shard_of_block = []
    start = 0
    for shard, rows in enumerate(shard_rows):
        stop = start + rows
        for first in range(start, stop, size):
            blocks.append(range(first, min(first + size, stop)))
            shard_of_block.append(shard)
        start = stop
    every = np.arange(len(blocks))
    assert (layout.rows, layout.num_blocks) == (start, len(blocks))
    assert layout.first_row(every).tolist() == [block[0] for block in blocks]
    assert layout.rows_of(every).tolist() == [len(block) for block in blocks]
    assert layout.shard_of(every).tolist() == shard_of_block
    numbers = np.repeat(every, [len(block) for block in blocks])
    assert layout.blocks_of(np.arange(start)).tolist() == numbers.tolist()


def test_a_block_has_about_four_mebibytes_and_a_row_at_least():
    assert block_rows(16) * 16 == BLOCK_BYTES
    assert block_rows(2 * BLOCK_BYTES) == 1
