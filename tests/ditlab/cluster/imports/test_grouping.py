"""Blocks of an import in tasks of Ray Data."""

import pytest

from ditlab.cluster.imports import grouped
from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import SourceFile


@pytest.mark.parametrize(
    ("num", "mebibytes", "cores", "sizes"),
    [
        (3, 16, 2, [1, 1, 1]),
        (40, 16, 2, [4] * 10),
        (40, 100, 2, [1] * 40),
        (17, 1, 2, [2] * 8 + [1]),
        (0, 1, 2, []),
    ],
)
def test_small_blocks_share_a_task(num: int, mebibytes: int, cores: int, sizes: list[int]) -> None:
    file = SourceFile("/photos", "a.jpg", mebibytes * 2**20, "1")
    blocks = [InputBlock(number, (file,)) for number in range(num)]
    groups = grouped(blocks, cores)
    assert [len(group) for group in groups] == sizes
    assert [block for group in groups for block in group] == blocks
