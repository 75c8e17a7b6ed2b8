"""Files of a store on disk: opened, checked, mapped."""

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np
import pyarrow as pa

from ditlab.data.stores.arrow_file import first_batch
from ditlab.data.stores.blocks.index import BlockEntry
from ditlab.data.stores.blocks.messages import arrow_schema, batch_columns, digests, read_block
from ditlab.data.stores.manifest import StoredColumn, StoreShard
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_plain

UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    RuntimeError,
    ArithmeticError,
)
"""Errors of pyarrow and NumPy for a file that is no Arrow file of a manifest's columns."""
REMEDY = "remove the store's folder and import the data again with `ditlab data import`."


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """Open a file of a store. Raises UserError where it is missing or cannot be read, also in the body."""
    try:
        with open_plain(file) as content:
            yield content
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing from its store; {REMEDY}") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); {REMEDY}") from error


def check_size(file: Path, size: int, sha256: str = "") -> None:
    """Raise UserError where a file has another size than its manifest says or, where given, another SHA-256."""
    with opened(file) as content:
        found = os.fstat(content.fileno()).st_size
        if found != size:
            raise UserError(f"{file} was altered: it has {found} bytes, and its manifest says {size}; {REMEDY}")
        if sha256:
            _check_digest(file, content, sha256)


def check_attachment(file: Path, sha256: str) -> None:
    """Raise UserError where a file beside the shards is missing or has another SHA-256."""
    with opened(file) as content:
        _check_digest(file, content, sha256)


def _check_digest(file: Path, content: BufferedReader, sha256: str) -> None:
    digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != sha256:
        raise UserError(
            f"{file} was altered: its SHA-256 is {digest[:16]}..., and its manifest says {sha256[:16]}...; {REMEDY}"
        )


def map_file(file: Path) -> mmap.mmap:
    """Return a private map of a file: what is written into it by mistake changes nothing on disk."""
    with opened(file) as content:
        return mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_COPY)


class MappedShard:
    """Shard in memory maps: of format 3 several blocks, of formats 1 and 2 a single one.

    Raises UserError where the file is no Arrow file of its columns, although its size is that of the manifest.
    """

    def __init__(
        self,
        file: Path,
        shard: StoreShard,
        columns: Mapping[str, StoredColumn],
        rows_per_block: int,
        entries: list[BlockEntry] | None,
    ):
        """Map a shard; `entries`: those of its blocks, None in formats 1 and 2."""
        self._file, self._rows, self._columns, self._entries = file, shard.rows, columns, entries
        self._block_rows = rows_per_block if entries else shard.rows
        self.verified = np.zeros(-(-shard.rows // self._block_rows), bool)
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
        if self._entries is not None and digests(block) != self._entries[number].digests:
            raise UserError(
                f"{self._file} was altered: block {number + 1:,} of {len(self.verified):,} differs from its SHA-256; "
                f"{REMEDY}"
            )
        self.verified[number] = True
        if self._entries is not None and len(self.verified) > 1:
            self._release(self._entries[number])

    def _release(self, entry: BlockEntry) -> None:
        """Give up a block's pages, all of which were read for its hash; those of its rows come back when needed."""
        first = -(-entry.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (entry.offset + entry.length - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if whole > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, first, whole)

    def _map(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the columns of all blocks but the last, (blocks, rows, *shape), and of the last, (rows, *shape)."""
        self._pages = pages = map_file(self._file)
        memory = pa.py_buffer(pages)
        if self._entries is None:
            last = batch_columns(first_batch(memory), self._columns, self._rows)
            return {}, {name: self._over(pages, memory, values) for name, values in last.items()}
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
