"""Arrow store: memory-mapped, checked, read without copies."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from io import BufferedReader
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ditlab.data.stores.block_index import WHOLE_BYTES, BlockEntry, BlockIndex, BlockLayout
from ditlab.data.stores.blocks import arrow_schema, digests, read_block
from ditlab.data.stores.manifest import MANIFEST_NAME, StoredColumn, StoreManifest, StoreShard, read_manifest
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_regular_file

MAPPED_SHARDS = 256
"""Shards that are mapped at a time: each holds a file descriptor, of which a process often has 1,024."""
UNREADABLE = (
    pa.ArrowException, OSError, ValueError, LookupError, AttributeError, TypeError, RuntimeError, ArithmeticError
)  # fmt: skip
"""Errors of pyarrow and NumPy for a file that is no Arrow file of a manifest's columns."""
REMEDY = "remove the store's folder and import the data again with `ditlab data import`."


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
    def open(cls, path: Path, verify: bool = True) -> Store:
        """Open the store in a folder; with `verify` its hashes are compared, as `start_verifying` has it.

        Without `verify`, sizes alone are. Raises UserError where there is no store, its format is another version's, or
        a shard or an attachment is missing or altered.
        """
        store = cls(path, read_manifest(path / MANIFEST_NAME, StoreManifest))
        store._check_files(whole=False)
        if verify:
            store.start_verifying(at_once=store.size <= WHOLE_BYTES)
        store._shard(0)
        return store

    def start_verifying(self, at_once: bool) -> None:
        """Hash the store now (about 1 GB/s), or each block when it is first read.

        Raises UserError for a file that was altered.
        """
        if at_once:
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
        """Compare the files' sizes with the manifest, and the hashes: of attachments, and if `whole` of all."""
        for name, size, sha256 in self.manifest.stored_files:
            with opened(self.path / name) as content:
                found = os.fstat(content.fileno()).st_size
                if size is not None and found != size:
                    raise UserError(
                        f"{self.path / name} was altered: it has {found} bytes, and its manifest says {size}; {REMEDY}"
                    )
                if (whole or size is None) and (digest := hashlib.file_digest(content, "sha256").hexdigest()) != sha256:
                    raise UserError(
                        f"{self.path / name} was altered: its SHA-256 is {digest[:16]}..., and its manifest says "
                        f"{sha256[:16]}...; {REMEDY}"
                    )

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
        """Rows in blocks."""
        return BlockLayout.of([shard.rows for shard in self.manifest.shards], self.manifest.block_rows)

    @property
    def parts(self) -> tuple[Store, ...]:
        """Stores of one shape each that it consists of: itself. A bucketed store has more."""
        return (self,)

    def bucket_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number in `parts` of each row's store, int64 (len(rows),): 0."""
        return np.zeros(len(rows), np.int64)

    def locate(self, rows: np.ndarray) -> tuple[Store, np.ndarray]:
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
        target = None if out is None else (out.view(torch.uint8) if out.dtype == torch.bool else out).numpy()
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
            mapped = MappedShard(
                self.path / shard.file, shard, self.columns, self.manifest.block_rows, self._entries(number)
            )
            mapped.verified = self._verified.setdefault(number, mapped.verified)
            self._mapped[number] = mapped
            if len(self._mapped) > MAPPED_SHARDS:
                self._mapped.popitem(last=False)
        return mapped

    @cached_property
    def _index(self) -> BlockIndex:
        hashes = [shard.blocks for shard in self.manifest.shards]
        return BlockIndex(self.layout, hashes, len(self.columns), self._read_index)

    def _read_index(self, places: Mapping[int, tuple[int, int]]) -> dict[int, bytes]:
        with opened(self.path / self.manifest.index.file) as content:
            return {shard: os.pread(content.fileno(), length, first) for shard, (first, length) in places.items()}

    def _entries(self, shard: int) -> list[BlockEntry]:
        try:
            return self._index.of_shards([shard])[shard]
        except ValueError as error:
            raise UserError(f"{self.path / self.manifest.index.file} was altered: {error}; {REMEDY}") from None


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """Open a file of a store. Raises UserError where it is missing or cannot be read, also in the body."""
    try:
        with open_regular_file(file) as content:
            yield content
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing from its store; {REMEDY}") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); {REMEDY}") from error


class MappedShard:
    """Shard in a memory map.

    Raises UserError where the file is no Arrow file of its columns, although its size is that of the manifest.
    """

    def __init__(
        self,
        file: Path,
        shard: StoreShard,
        columns: Mapping[str, StoredColumn],
        rows_per_block: int,
        entries: list[BlockEntry],
    ):
        """Map a shard; `entries`: those of its blocks."""
        self._file, self._rows, self._columns, self._entries = file, shard.rows, columns, entries
        self._block_rows = rows_per_block
        self.verified = np.zeros(len(entries), bool)
        """Blocks whose hashes were compared."""
        try:
            self._whole, self._last = self._map()
        except UNREADABLE as error:
            raise UserError(
                f"{file} does not hold the columns of its manifest ({first_line(error)}); {REMEDY}"
            ) from error

    def take(self, column: str, rows: np.ndarray, verify: bool, out: np.ndarray | None = None) -> np.ndarray:
        """Copy rows of a column, by their numbers in this shard. `verify`: compare the hashes of blocks not seen yet.

        Raises UserError for a block that was altered.
        """
        if len(self.verified) == 1:
            if verify and not self.verified[0]:
                self._verify(0)
            # mode="raise" goes through a copy
            return np.take(self._last[column], rows, axis=0, out=out, mode="clip")
        blocks, places = np.divmod(rows, self._block_rows)
        if verify:
            for block in np.unique(blocks[~self.verified[blocks]]):
                self._verify(int(block))
        whole = self._whole[column]
        if out is None:
            out = np.empty((len(rows), *whole.shape[2:]), whole.dtype)
        is_last = blocks == len(whole)
        if not is_last.any():
            out[...] = whole[blocks, places]
        else:
            out[~is_last] = whole[blocks[~is_last], places[~is_last]]
            out[is_last] = self._last[column][places[is_last]]
        return out

    def column(self, name: str) -> np.ndarray:
        """Return all rows of a column, (rows, *shape): the map itself in a shard of one block, else a copy."""
        if len(self.verified) == 1:
            return self._last[name]
        return np.concatenate([self._whole[name].reshape(-1, *self._whole[name].shape[2:]), self._last[name]])

    def _verify(self, number: int) -> None:
        """Compare a block's hashes with its entry's."""
        is_last = number == len(self.verified) - 1
        block = self._last if is_last else {name: values[number] for name, values in self._whole.items()}
        if digests(block) != self._entries[number].digests:
            raise UserError(
                f"{self._file} was altered: block {number + 1:,} of {len(self.verified):,} differs from its SHA-256; "
                f"{REMEDY}"
            )
        self.verified[number] = True
        if len(self.verified) > 1:
            self._release(self._entries[number])

    def _release(self, entry: BlockEntry) -> None:
        """Give up a block's pages, all of which were read for its hash; those of its rows come back when needed."""
        first = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (entry.offset + entry.length - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if whole > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, first, whole)

    def _map(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the columns of all blocks but the last, (blocks, rows, *shape), and of the last, (rows, *shape)."""
        with opened(self._file) as content:
            # private: what is written into it by mistake changes nothing on disk
            self._pages = pages = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_COPY)
        memory = pa.py_buffer(pages)
        schema, entries, num = arrow_schema(self._columns), self._entries, len(self._entries)
        rows = self._rows - (num - 1) * self._block_rows
        last = read_block(memory.slice(entries[-1].offset, entries[-1].length), self._columns, schema, rows)
        whole = {}
        if num > 1:
            first = read_block(
                memory.slice(entries[0].offset, entries[0].length), self._columns, schema, self._block_rows
            )
            stride = entries[0].length
            if any(entry.offset != entries[0].offset + place * stride for place, entry in enumerate(entries)):
                raise ValueError("its blocks do not follow each other")
            whole = {name: self._over(pages, memory, values, num - 1, stride) for name, values in first.items()}
        return whole, {name: self._over(pages, memory, values) for name, values in last.items()}

    @staticmethod
    def _over(
        pages: mmap.mmap, memory: pa.Buffer, values: np.ndarray, blocks: int | None = None, stride: int = 0
    ) -> np.ndarray:
        """Return an array over the map where `values` lie; with `blocks`, over as many blocks, `stride` bytes apart."""
        offset = values.__array_interface__["data"][0] - memory.address
        if blocks is None:
            return np.ndarray(values.shape, values.dtype, pages, offset)
        return np.ndarray((blocks, *values.shape), values.dtype, pages, offset, (stride, *values.strides))
