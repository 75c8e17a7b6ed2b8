"""Index of a store's blocks: the place of each in its shard, and the hash of each of its columns.

The index file holds an entry for each block, in the order of the shards: offset and length of the block's message in
the shard (8 bytes each, little-endian, unsigned), then 32 bytes of SHA-256 for each column, the columns sorted by name.
The hash is that of the column's elements, row by row, little-endian. The manifest holds the hash of each shard's
entries, and the file's own.
"""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.stores.layout import BlockLayout

DIGEST_BYTES = 32
KEPT_SHARDS = 4096
"""Shards whose entries are kept in memory: some 20 MB, where a shard of 256 MiB has 64 blocks of 4 MiB."""

ReadRange = Callable[[int, int], bytes]
"""Function that returns bytes of the index file, by offset and length."""


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
        """Return the entry as it stands in the index file."""
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

    def __init__(self, layout: BlockLayout, shard_hashes: Sequence[str], num_columns: int, read: ReadRange):
        self._layout, self._hashes, self._num_columns, self._read = layout, shard_hashes, num_columns, read
        self._first = np.cumsum(layout.shard_blocks) - layout.shard_blocks
        self._kept: OrderedDict[int, list[BlockEntry]] = OrderedDict()

    def entries(self, shard: int) -> list[BlockEntry]:
        """Return the entries of a shard. Raises ValueError where they differ from the manifest; as `read` does."""
        entries = self._kept.get(shard)
        if entries is None:
            size = entry_bytes(self._num_columns)
            content = self._read(int(self._first[shard]) * size, int(self._layout.shard_blocks[shard]) * size)
            verify_entries(content, self._hashes[shard])
            entries = self._kept[shard] = unpack_entries(content, self._num_columns)
            if len(self._kept) > KEPT_SHARDS:
                self._kept.popitem(last=False)
        return entries
