"""Layout and index of a store's blocks: the rows of each, its place in its shard, the hash of each of its columns.

The layout takes memory that grows with the number of shards alone.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCK_BYTES = 4 * 2**20
"""Size of a block: one request of an object store, whose latency of 50 ms is then little beside the transfer."""
WHOLE_BYTES = 64 * 2**20
"""Most bytes of a store that is written as a single block, and of one that is verified whole when it is opened."""
DIGEST_BYTES = 32
KEPT_SHARDS = 4096
"""Shards whose entries are kept in memory: some 20 MB, where a shard of 256 MiB has 64 blocks of 4 MiB."""
ReadRanges = Callable[[Mapping[int, tuple[int, int]]], Mapping[int, bytes]]
"""Function that returns each shard's part of the index file, by the offset and length of each."""


def block_rows(row_bytes: int) -> int:
    """Return the rows of a block, by the bytes of a row."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def group_places(numbers: np.ndarray) -> dict[int, np.ndarray]:
    """Return the places of equal numbers (of blocks, of buckets) by number, both ascending, int64 each."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else {}


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Rows of a store, cut into blocks: shard by shard, `block_rows` each; a shard's last block may have fewer."""

    shard_rows: np.ndarray
    """Rows of each shard, int64 (shards,), each at least 1."""
    block_rows: int
    """Rows of a whole block."""

    @classmethod
    def of(cls, shard_rows: Sequence[int], block_rows: int) -> BlockLayout:
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


@dataclass(frozen=True)
class BlockEntry:
    """Place and hashes of a block."""

    offset: int
    """Place of its message in the shard's file."""
    length: int
    """Length of its message: metadata and columns."""
    digests: tuple[bytes, ...]
    """SHA-256 of each column, sorted by the columns' names."""

    @property
    def key(self) -> str:
        """Name of its content: the same for equal rows of equal columns, in whatever store."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def pack(self) -> bytes:
        """Return the entry as it is in the index file."""
        return struct.pack("<QQ", self.offset, self.length) + b"".join(self.digests)


def entry_bytes(num_columns: int) -> int:
    """Return the length of an entry."""
    return 16 + num_columns * DIGEST_BYTES


def unpack_entries(content: bytes, num_columns: int) -> list[BlockEntry]:
    """Return the entries in a shard's part of the index file."""
    size = entry_bytes(num_columns)
    entries = []
    for start in range(0, len(content), size):
        offset, length = struct.unpack_from("<QQ", content, start)
        digests = (content[place : place + DIGEST_BYTES] for place in range(start + 16, start + size, DIGEST_BYTES))
        entries.append(BlockEntry(offset, length, tuple(digests)))
    return entries


def verify_entries(content: bytes | memoryview, sha256: str) -> None:
    """Raise ValueError where a shard's part of the index file differs from the manifest."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its entries do not give the SHA-256 in the manifest")


def column_hash(blocks: Iterable[tuple[int, bytes]]) -> str:
    """Return the hash of a column (hex) from the rows and digests of its blocks, in their order.

    Of a single block it is the block's own digest, and so the hash that versions 1 and 2 of the format have; of
    several, the SHA-256 over each block's rows (8 bytes, little-endian) and digest.
    """
    whole, first, num = hashlib.sha256(), b"", 0
    for rows, digest in blocks:
        whole.update(struct.pack("<Q", rows) + digest)
        first, num = digest, num + 1
    return first.hex() if num == 1 else whole.hexdigest()


class BlockIndex:
    """Entries of a store's blocks, read by shard when they are needed, and checked against the manifest's hashes."""

    def __init__(self, layout: BlockLayout, shard_hashes: Sequence[str], num_columns: int, read: ReadRanges):
        self._layout, self._hashes, self._num_columns, self._read = layout, shard_hashes, num_columns, read
        self._first = np.cumsum(layout.shard_blocks) - layout.shard_blocks
        self._kept: OrderedDict[int, list[BlockEntry]] = OrderedDict()
        self._lock = threading.Lock()

    def first_block(self, shard: int) -> int:
        """Return the number of a shard's first block."""
        return int(self._first[shard])

    def of_shards(self, shards: Sequence[int]) -> dict[int, list[BlockEntry]]:
        """Return the entries of shards by number. Raises ValueError where they differ from the manifest; as `read`."""
        with self._lock:
            found = {shard: self._kept[shard] for shard in shards if shard in self._kept}
        size, missing = entry_bytes(self._num_columns), [shard for shard in shards if shard not in found]
        blocks = self._layout.shard_blocks
        places = {shard: (int(self._first[shard]) * size, int(blocks[shard]) * size) for shard in missing}
        for shard, content in (self._read(places) if places else {}).items():
            verify_entries(content, self._hashes[shard])
            found[shard] = unpack_entries(content, self._num_columns)
        with self._lock:
            self._kept.update((shard, found[shard]) for shard in missing)
            while len(self._kept) > KEPT_SHARDS:
                self._kept.popitem(last=False)
        return found

    def of_blocks(self, blocks: np.ndarray) -> dict[int, BlockEntry]:
        """Return the entries of blocks by number. Raises as `of_shards` does."""
        shards = self._layout.shard_of(blocks)
        of_shard = self.of_shards(np.unique(shards).tolist())
        return {
            block: of_shard[shard][block - int(self._first[shard])]
            for block, shard in zip(blocks.tolist(), shards.tolist(), strict=True)
        }
