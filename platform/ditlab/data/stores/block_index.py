"""Layout and index of a store's blocks: the rows of each, its place in its shard, the hash of each
of its columns.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BLOCK_BYTES = 4 * 2**20
"""Size of a block: one request of an object store, whose latency of 50 ms is then little beside the
transfer.
"""
WHOLE_BYTES = 64 * 2**20
"""Most bytes of a store that is written as a single block, and of one that is verified whole when
it is opened.
"""
PIECE_BYTES = 64 * 2**10
"""Size of a piece of a block, which is hashed alone: the 128 rows of a shuffled batch lie in at
most 8 MiB of pieces, a few milliseconds of BLAKE3, and in half a gigabyte of blocks."""
DIGEST_BYTES = 32
KEPT_SHARDS = 4096
"""Shards whose entries are kept in memory: some 20 MB, where a shard of 256 MiB has 64 blocks of 4
MiB.
"""
ReadRanges = Callable[[Mapping[int, tuple[int, int]]], Mapping[int, bytes]]
"""Function that returns each shard's part of the index file, by the offset and length of each."""


def block_rows(row_bytes: int) -> int:
    """Return the rows of a block, by the bytes of a row."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def piece_rows(row_bytes: int) -> int:
    """Return the rows of a block's piece, by the bytes of a row of all columns; its last one may
    have fewer.
    """
    return max(1, PIECE_BYTES // max(1, row_bytes))


def group_places(numbers: np.ndarray) -> dict[int, np.ndarray]:
    """Return the places of equal numbers (of blocks, of buckets) by number, both ascending, int64
    each.
    """
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    if len(order):
        return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
    return {}


class BlockLayout:
    """Rows of a store, cut into blocks: shard by shard, `block_rows` each; a shard's last block may
    have fewer.

    It takes memory that grows with the number of shards alone.
    """

    def __init__(self, shard_rows: Sequence[int] | np.ndarray, block_rows: int):
        """Cut shards of these numbers of rows, each at least 1; `block_rows`: rows of a whole
        block.
        """
        self.shard_rows = np.asarray(shard_rows, np.int64)
        self.block_rows = block_rows
        self.shard_blocks = -(-self.shard_rows // block_rows)
        """Blocks of each shard, int64 (shards,)."""
        self.rows = int(self.shard_rows.sum())
        self.num_blocks = int(self.shard_blocks.sum())
        self._ends = np.cumsum(self.shard_rows)
        self._block_ends = np.cumsum(self.shard_blocks)
        self.first_rows = self._ends - self.shard_rows
        self.first_blocks = self._block_ends - self.shard_blocks
        """First row and first block of each shard, int64 (shards,)."""

    def blocks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of the block that holds each row, int64."""
        shards = np.searchsorted(self._ends, rows, side="right")
        blocks: np.ndarray = (
            self.first_blocks[shards] + (rows - self.first_rows[shards]) // self.block_rows
        )
        return blocks

    def shard_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of the shard that holds each block, int64."""
        return np.searchsorted(self._block_ends, blocks, side="right")

    def first_row(self, blocks: np.ndarray) -> np.ndarray:
        """Return the first row of each block, int64; for `num_blocks` itself: the number of
        rows.
        """
        shards = np.minimum(self.shard_of(blocks), len(self.shard_rows) - 1)
        inside = (blocks - self.first_blocks[shards]) * self.block_rows
        first: np.ndarray = self.first_rows[shards] + np.minimum(inside, self.shard_rows[shards])
        return first

    def rows_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the number of rows of each block, int64."""
        rows: np.ndarray = self.first_row(blocks + 1) - self.first_row(blocks)
        return rows


@dataclass(frozen=True)
class BlockEntry:
    """Place and hashes of a block."""

    offset: int
    """Place of its message in the shard's file."""
    length: int
    """Length of its message: metadata and columns."""
    digests: tuple[bytes, ...]
    """SHA-256 of each column, sorted by the columns' names."""

    def pack(self) -> bytes:
        """Return the entry as it is in the index file."""
        return struct.pack("<QQ", self.offset, self.length) + b"".join(self.digests)


def unpack_entries(content: bytes, num_columns: int) -> list[BlockEntry]:
    """Return the entries in a shard's part of the index file."""
    return [
        BlockEntry(offset, length, tuple(digests))
        for offset, length, *digests in struct.iter_unpack(
            "<QQ" + f"{DIGEST_BYTES}s" * num_columns, content
        )
    ]


def verify_entries(content: bytes | memoryview, sha256: str) -> None:
    """Raise ValueError where a shard's part of the index file differs from the manifest."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its entries do not give the SHA-256 in the manifest")


def column_hash(blocks: Iterable[tuple[int, bytes]]) -> str:
    """Return the hash of a column (hex) from the rows and digests of its blocks, in their order.

    Of a single block its own digest; of several, the SHA-256 over each one's rows (8 bytes,
    little-endian) and digest.
    """
    whole = hashlib.sha256()
    first = b""
    num = 0
    for rows, digest in blocks:
        whole.update(struct.pack("<Q", rows) + digest)
        first = digest
        num += 1
    return first.hex() if num == 1 else whole.hexdigest()


class BlockIndex:
    """Entries of a store's blocks, read by shard when they are needed, and checked against the
    manifest's hashes.
    """

    def __init__(
        self, layout: BlockLayout, shard_hashes: Sequence[str], num_columns: int, read: ReadRanges
    ):
        self._layout = layout
        self._hashes = shard_hashes
        self._num_columns = num_columns
        self._read = read
        self._kept: OrderedDict[int, list[BlockEntry]] = OrderedDict()
        self._lock = threading.Lock()

    def of_shards(self, shards: Sequence[int]) -> dict[int, list[BlockEntry]]:
        """Return the entries of shards by number. Raises ValueError where they differ from the
        manifest; as `read`.
        """
        with self._lock:
            found = {shard: self._kept[shard] for shard in shards if shard in self._kept}
        missing = [shard for shard in shards if shard not in found]
        size = 16 + self._num_columns * DIGEST_BYTES
        firsts = self._layout.first_blocks
        blocks = self._layout.shard_blocks
        places = {
            shard: (int(firsts[shard]) * size, int(blocks[shard]) * size) for shard in missing
        }
        if places:
            for shard, content in self._read(places).items():
                verify_entries(content, self._hashes[shard])
                found[shard] = unpack_entries(content, self._num_columns)
        with self._lock:
            self._kept.update((shard, found[shard]) for shard in missing)
            while len(self._kept) > KEPT_SHARDS:
                self._kept.popitem(last=False)
        return found
