"""Arrow store: memory-mapped, checked, read without copies."""

import os
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ditlab.data.stores.blocks.index import BlockEntry, BlockIndex
from ditlab.data.stores.layout import WHOLE_BYTES, BlockLayout, block_rows
from ditlab.data.stores.manifest import BLOCK_VERSION, MANIFEST_NAME, StoredColumn, StoreManifest
from ditlab.data.stores.manifest_parsing import parse_manifest, read_manifest_bytes
from ditlab.data.stores.shard_files import REMEDY, MappedShard, check_attachment, check_size, opened
from ditlab.errors import UserError

MAPPED_SHARDS = 256
"""Shards that are mapped at a time: each holds a file descriptor, of which a process often has 1,024."""


class Store:
    """Open Arrow store. Shards are mapped when they are first read; tensors share the map's pages.

    The maps are private (copy on write): a tensor written to by mistake changes nothing on disk.
    """

    def __init__(self, path: Path, manifest: StoreManifest):
        """Make a store of a manifest alone, whose rows cannot be read; use `open` for one with rows."""
        self.path = path
        self.manifest = manifest
        self._ends = np.cumsum([shard.rows for shard in manifest.shards])
        self._verifies = False
        self._mapped: OrderedDict[int, MappedShard] = OrderedDict()
        self._verified: dict[int, np.ndarray] = {}
        """Blocks whose hashes were compared, by shard: shards may be mapped more than once."""

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> "Store":
        """Open the store in a folder; with `verify` its hashes are compared, as `start_verifying` has it.

        Without `verify`, sizes alone are. Raises UserError where there is no store, its format is another version's, or
        a shard or an attachment is missing or altered.
        """
        store = cls(path, read_manifest(path))
        store._check_files(whole=False)
        if verify:
            store.start_verifying(at_once=store.size <= WHOLE_BYTES)
        store._shard(0)
        return store

    def start_verifying(self, at_once: bool) -> None:
        """Hash the store now (about 1 GB/s), or each block when it is first read; formats 1 and 2 always now.

        Raises UserError for a file that was altered.
        """
        if at_once or self.manifest.version < BLOCK_VERSION:
            self.verify()
        else:
            self._verifies = True

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.manifest.shards)

    def verify(self) -> None:
        """Hash every file, and compare with the manifest. Raises UserError for the first one that was altered."""
        self._check_files(whole=True)

    def _check_files(self, whole: bool) -> None:
        """Compare the files' sizes with the manifest, and if `whole` their hashes."""
        manifest = self.manifest
        for shard in manifest.shards:
            check_size(self.path / shard.file, shard.bytes, shard.sha256 if whole else "")
        if manifest.index is not None:
            check_size(self.path / manifest.index.file, manifest.index.bytes, manifest.index.sha256 if whole else "")
        for name, digest in manifest.attachments.items():
            check_attachment(self.path / name, digest)

    @property
    def name(self) -> str:
        """Name in the manifest."""
        return self.manifest.name

    @property
    def columns(self) -> Mapping[str, StoredColumn]:
        """Columns by name."""
        return self.manifest.columns

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the contents: see `manifest.content_fingerprint`."""
        return self.manifest.fingerprint

    @cached_property
    def layout(self) -> BlockLayout:
        """Rows in blocks; in formats 1 and 2, whose shards are of one piece, in blocks of the same size."""
        size = self.manifest.block_rows or block_rows(sum(column.row_bytes for column in self.columns.values()))
        return BlockLayout.of([shard.rows for shard in self.manifest.shards], size)

    @property
    def parts(self) -> "tuple[Store, ...]":
        """Stores of one shape each that it consists of: itself. A bucketed store has more."""
        return (self,)

    def bucket_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number in `parts` of each row's store, int64 (len(rows),): 0."""
        return np.zeros(len(rows), np.int64)

    def locate(self, rows: np.ndarray) -> "tuple[Store, np.ndarray]":
        """Return the one of `parts` that holds the given rows, and their numbers in it: this store and `rows`."""
        return self, rows

    def __len__(self) -> int:
        return self.manifest.rows

    def expect(self, blocks: np.ndarray) -> None:
        """Take note that blocks (int64) will be read soon: nothing to do for a store on this machine's disk."""

    def close(self) -> None:
        """Give up what the store holds beside its memory: nothing. Closing twice is fine."""

    def tensor(self, column: str) -> Tensor:
        """Return the whole column, (rows, *shape): the map itself in a store of one block, else a copy."""
        parts = [self._as_stored(column, self._shard(number).column(column)) for number in range(len(self._ends))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy the given rows of a column in the given order: (len(rows), *shape).

        `rows`: int64, in [0, len(store)); `out`: tensor to copy into. Raises UserError for a block that was altered.
        """
        # NumPy copies on the calling thread, without the GIL. torch.index_select would bring up a team of OpenMP
        # threads in the loader's thread, beside the training step's: where the cores are taken, each of its barriers
        # was seen to wait for milliseconds. And torch cannot assign to indices of uint16.
        target = None if out is None else _stored_view(out)
        if len(self._ends) == 1:
            target = self._shard(0).take(column, rows, self._verifies, target)
            return self._as_stored(column, target) if out is None else out
        if target is None:
            stored = self.columns[column]
            target = np.empty((len(rows), *stored.shape), stored.stored_dtype)
        shard_of_row = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(shard_of_row).tolist():
            here = np.flatnonzero(shard_of_row == number)
            start = int(self._ends[number]) - self.manifest.shards[number].rows
            target[here] = self._shard(number).take(column, rows[here] - start, self._verifies)
        return self._as_stored(column, target) if out is None else out

    def _as_stored(self, column: str, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.view(torch.bool) if self.columns[column].dtype == "bool" else tensor

    def _shard(self, number: int) -> MappedShard:
        """Return a mapped shard. Raises UserError where it is no shard of these columns."""
        mapped = self._mapped.get(number)
        if mapped is None:
            shard = self.manifest.shards[number]
            entries = None if self._index is None else self._entries(self._index, number)
            mapped = MappedShard(self.path / shard.file, shard, self.columns, self.layout.block_rows, entries)
            mapped.verified = self._verified.setdefault(number, mapped.verified)
            self._mapped[number] = mapped
            if len(self._mapped) > MAPPED_SHARDS:
                self._mapped.popitem(last=False)
        return mapped

    @cached_property
    def _index(self) -> BlockIndex | None:
        if self.manifest.index is None:
            return None
        file = self.path / self.manifest.index.file

        def read(offset: int, length: int) -> bytes:
            with opened(file) as content:
                return os.pread(content.fileno(), length, offset)

        return BlockIndex(self.layout, [shard.blocks for shard in self.manifest.shards], len(self.columns), read)

    def _entries(self, index: BlockIndex, shard: int) -> list[BlockEntry]:
        try:
            return index.entries(shard)
        except ValueError as error:
            file = self.path / (self.manifest.index.file if self.manifest.index else "")
            raise UserError(f"{file} was altered: {error}; {REMEDY}") from None


def read_manifest(path: Path) -> StoreManifest:
    """Read the `store.json` in a folder. Raises UserError where it is missing, unreadable or of another version."""
    file = path / MANIFEST_NAME
    return parse_manifest(read_manifest_bytes(file), str(file))


def _stored_view(out: Tensor) -> np.ndarray:
    """Return the array of a tensor in a column's stored dtype: bool is kept as uint8."""
    array: np.ndarray = (out.view(torch.uint8) if out.dtype == torch.bool else out).numpy()
    return array
