"""Arrow store: memory-mapped, checked, copied from block by block."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from ditlab.data.stores.block_index import (
    WHOLE_BYTES,
    BlockEntry,
    BlockIndex,
    BlockLayout,
    piece_rows,
)
from ditlab.data.stores.blocks import (
    PIECE_DIGEST_BYTES,
    arrow_schema,
    digests,
    piece_digest,
    read_block,
)
from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    StoredColumn,
    StoreManifest,
    read_manifest,
    row_bytes,
)
from ditlab.errors import UserError, first_line

if TYPE_CHECKING:  # an import's processes do without torch, which takes seconds to import
    from torch import Tensor

MAPPED_SHARDS = 256
"""Shards that are mapped at a time: each holds a file descriptor, of which a process often has
1,024.
"""
COPIED_AT_ONCE = 512
MOST_AT_ONCE = 2**22
"""Rows from which on NumPy copies without the GIL (501), and most bytes of so many. With fewer at a
time the thread that computes waited for every copy, and a batch of 128 small images took 85 us in
place of 55."""
COPIED_BYTES = 100_000
"""Bytes copied at a time, through memory that the C library has at hand (below 128 KiB) and the
cache holds.
"""
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


class StoredBlock(dict[str, np.ndarray]):
    """Rows of a block by column, (rows, *shape) each, in the stored dtype."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        super().__init__(columns)
        # Asked for by every gather, the addresses of 250 blocks took 280 us in which no other
        # thread could run Python.
        self.begins = {
            name: int(values.__array_interface__["data"][0]) for name, values in columns.items()
        }
        """Address of each column's first row."""


class Store:
    """Open Arrow store. Shards are mapped when they are first read, and pieces of blocks verified
    then.
    """

    def __init__(self, path: Path, manifest: StoreManifest):
        """Make a store of a manifest alone, whose rows cannot be read; use `open` for one with
        rows.
        """
        self.path = path
        self.manifest = manifest
        self.name = manifest.name
        self.fingerprint = manifest.fingerprint
        self.columns: Mapping[str, StoredColumn] = manifest.columns
        self.size = sum(shard.bytes for shard in manifest.shards)
        """Bytes of all shards."""
        self._schema = arrow_schema(manifest.columns)
        self.verifies_blocks = False
        """True where each piece of a block is hashed when it is first read, until all of them
        were.
        """
        self._pieces = lru_cache(MAPPED_SHARDS)(self._read_pieces)
        self._mapped: OrderedDict[
            int, tuple[pa.Buffer, list[BlockEntry], dict[int, StoredBlock]]
        ] = OrderedDict()
        """Map of each shard that is mapped, entries of its blocks, and the blocks that were
        read.
        """

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> Store:
        """Open the store in a folder; with `verify` its hashes are compared, those of a large store
        piece by piece.

        Without `verify`, sizes alone are. Raises UserError where there is no store, its format is
        another version's, or a shard or an attachment is missing or altered.
        """
        store = cls(path, read_manifest(path / MANIFEST_NAME, StoreManifest))
        store._check_files(whole=False)
        store.verifies_blocks = verify and store.size > WHOLE_BYTES
        if verify and not store.verifies_blocks:
            store.verify()
        store._load(np.zeros(1, np.int64))
        return store

    def verify(self) -> None:
        """Hash every file, and compare with the manifest. Raises UserError for the first one that
        was altered.
        """
        self._check_files(whole=True)

    def _check_files(self, whole: bool) -> None:
        """Compare the files' sizes with the manifest, and the hashes: of attachments, and if
        `whole` of all.
        """
        for name, size, sha256 in self.manifest.stored_files:
            with opened(self.path / name) as content:
                found = os.fstat(content.fileno()).st_size
                if size is not None and found != size:
                    raise UserError(
                        f"{self.path / name} was altered: it has {found} bytes, and its "
                        f"manifest says {size}; {REMEDY}"
                    )
                if not whole and size is not None:
                    continue
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                if digest != sha256:
                    raise UserError(
                        f"{self.path / name} was altered: its SHA-256 is {digest[:16]}..., and "
                        f"its manifest says {sha256[:16]}...; {REMEDY}"
                    )

    @cached_property
    def layout(self) -> BlockLayout:
        """Rows in blocks."""
        return BlockLayout([shard.rows for shard in self.manifest.shards], self.manifest.block_rows)

    @property
    def parts(self) -> tuple[Store, ...]:
        """Stores of one shape each that it consists of: itself. A bucketed store has more."""
        return (self,)

    def bucket_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number in `parts` of each row's store, int64 (len(rows),): 0."""
        return np.zeros(len(rows), np.int64)

    def locate(self, rows: np.ndarray) -> tuple[Store, np.ndarray]:
        """Return the one of `parts` that holds the given rows, and their numbers in it: this store
        and `rows`.
        """
        return self, rows

    def __len__(self) -> int:
        return self.manifest.rows

    def expect(self, blocks: np.ndarray) -> None:
        """Take note that blocks (int64) will be read soon: nothing to do for a store on this
        machine's disk.
        """

    def close(self) -> None:
        """Give up what the store holds beside its memory: nothing. Closing twice is fine."""

    def tensor(self, column: str) -> Tensor:
        """Return a copy of the whole column, (rows, *shape). Raises as `gather` does."""
        return self.gather(column, np.arange(len(self)))

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy the given rows of a column in the given order: (len(rows), *shape).

        `rows`: int64, in [0, len(store)); `out`: contiguous tensor to copy into. Raises UserError
        for a block that was altered.
        """
        import torch

        stored = self.columns[column]
        if out is None:
            out = torch.empty((len(rows), *stored.shape), dtype=getattr(torch, stored.dtype))
        if not len(rows):
            return out
        # NumPy copies on the calling thread, without the GIL; torch.index_select would start a team
        # of OpenMP threads beside the step's, whose barriers were seen to wait for milliseconds.
        # Nor can torch index uint16.
        stored_out = out.view(torch.uint8) if out.dtype == torch.bool else out
        target = stored_out.numpy()
        blocks = self.layout.blocks_of(rows)
        row_bytes = stored.row_bytes
        numbers = np.flatnonzero(np.bincount(blocks))
        firsts = self.layout.first_row(numbers)
        loaded = self._load(numbers)
        if self.verifies_blocks:
            starts = np.empty(int(numbers[-1]) + 1, np.int64)
            starts[numbers] = firsts
            self._verify(blocks, rows - starts[blocks], loaded)
        if len(numbers) == 1:  # mode="raise" goes through a copy
            np.take(
                loaded[int(numbers[0])][column], rows - firsts[0], axis=0, out=target, mode="clip"
            )
        else:
            begins = np.array(
                [loaded[number].begins[column] for number in numbers.tolist()], np.int64
            )
            # where row 0 would lie, if all were in the row's block
            zeros = np.empty(int(numbers[-1]) + 1, np.int64)
            zeros[numbers] = begins - firsts * row_bytes
            copy_rows(
                loaded[int(numbers[begins.argmin()])][column],
                zeros[blocks] + rows * row_bytes - begins.min(),
                target,
            )
        return out

    def _load(self, blocks: np.ndarray) -> Mapping[int, StoredBlock]:
        """Return blocks (ascending) by number, over maps of their shards. Raises UserError for one
        that cannot be read."""
        found: dict[int, StoredBlock] = {}
        shards, starts = np.unique(self.layout.shard_of(blocks), return_index=True)
        for shard, numbers in zip(shards.tolist(), np.split(blocks, starts[1:]), strict=True):
            try:
                found |= self._blocks_of_shard(shard, numbers.tolist())
            except UNREADABLE as error:
                raise UserError(
                    f"{self._file(shard)} does not hold the columns of its manifest "
                    f"({first_line(error)}); {REMEDY}"
                ) from error
        return found

    def _blocks_of_shard(self, shard: int, numbers: Sequence[int]) -> dict[int, StoredBlock]:
        """Return blocks of one shard by number. Raises errors of `UNREADABLE`."""
        mapped = self._mapped.get(shard)
        if mapped is None:
            with opened(self._file(shard)) as content:
                memory = pa.py_buffer(mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ))
            mapped = self._mapped[shard] = (memory, self.entries(shard), {})
            if len(self._mapped) > MAPPED_SHARDS:
                self._mapped.popitem(last=False)
        memory, entries, known = mapped
        missing = [number for number in numbers if number not in known]
        if missing:
            sizes = self.layout.rows_of(np.array(missing)).tolist()
            for number, rows in zip(missing, sizes, strict=True):
                entry = entries[number - int(self.layout.first_blocks[shard])]
                known[number] = self._read(memory.slice(entry.offset, entry.length), rows)
        return {number: known[number] for number in numbers}

    @cached_property
    def _piece_rows(self) -> int:
        return piece_rows(row_bytes(self.columns))

    @cached_property
    def _verified(self) -> np.ndarray:
        """True for the pieces that were hashed or, in a shorter block, hold no row, bool (blocks *
        pieces of a whole block,)."""
        rows = self.layout.rows_of(np.arange(self.layout.num_blocks))
        verified: np.ndarray = (
            np.arange(self._block_pieces) >= -(-rows // self._piece_rows)[:, None]
        )
        return verified.reshape(-1)

    @property
    def _block_pieces(self) -> int:
        return -(-self.layout.block_rows // self._piece_rows)

    def _verify(
        self, blocks: np.ndarray, inside: np.ndarray, loaded: Mapping[int, StoredBlock]
    ) -> None:
        """Hash the pieces that hold rows (their blocks, and places in these), unless they were.

        Where a shard has no digests of pieces, the whole block is hashed. Two threads may hash the
        same piece. Raises UserError for one that was altered.
        """
        num = self._block_pieces
        pieces = blocks * num + inside // self._piece_rows
        pieces = np.unique(pieces[~self._verified[pieces]])
        for piece, shard in zip(
            pieces.tolist(), self.layout.shard_of(pieces // num).tolist(), strict=True
        ):
            if self._verified[piece]:  # with its block
                continue
            block, in_block = divmod(piece, num)
            in_shard = block - int(self.layout.first_blocks[shard])
            hashed = slice(piece, piece + 1)
            table = self._pieces(shard)
            if table:
                held = slice(in_block * self._piece_rows, (in_block + 1) * self._piece_rows)
                digest = piece_digest(
                    {name: values[held] for name, values in loaded[block].items()}
                )
                place = PIECE_DIGEST_BYTES * (in_shard * num + in_block)
                is_same = digest == table[place : place + PIECE_DIGEST_BYTES]
            else:
                is_same = digests(loaded[block]) == self.entries(shard)[in_shard].digests
                hashed = slice(block * num, (block + 1) * num)
            if not is_same:
                raise UserError(
                    f"{self._file(shard)} was altered: block {in_shard + 1:,} of "
                    f"{self.layout.shard_blocks[shard]:,} differs from its hash; {REMEDY}"
                )
            self._verified[hashed] = True
        self.verifies_blocks = not self._verified.all()

    def _read_pieces(self, shard: int) -> bytes:
        """Return the digests of a shard's pieces; none where it has none. Raises UserError where
        they were altered.
        """
        pieces = self.manifest.shards[shard].pieces
        if pieces is None:
            return b""
        with opened(self.path / pieces.file) as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() != pieces.sha256:
            raise UserError(
                f"{self.path / pieces.file} was altered: it differs from its manifest's "
                f"SHA-256; {REMEDY}"
            )
        return content

    def _file(self, shard: int) -> Path:
        return self.path / self.manifest.shards[shard].file

    def _read(self, content: pa.Buffer, rows: int) -> StoredBlock:
        return StoredBlock(read_block(content, self.columns, self._schema, rows))

    def entries(self, shard: int) -> list[BlockEntry]:
        """Return the entries of a shard's blocks. Raises UserError where the index was altered."""
        try:
            return self._index.of_shards([shard])[shard]
        except ValueError as error:
            raise UserError(
                f"{self.path / self.manifest.index.file} was altered: {error}; {REMEDY}"
            ) from None

    @cached_property
    def _index(self) -> BlockIndex:
        hashes = [shard.blocks for shard in self.manifest.shards]
        return BlockIndex(self.layout, hashes, len(self.columns), self._read_index)

    def _read_index(self, places: Mapping[int, tuple[int, int]]) -> dict[int, bytes]:
        with opened(self.path / self.manifest.index.file) as content:
            return {
                shard: os.pread(content.fileno(), length, first)
                for shard, (first, length) in places.items()
            }


def copy_rows(first: np.ndarray, places: np.ndarray, target: np.ndarray) -> None:
    """Copy rows of several arrays into a contiguous one, (len(places), *shape), in one stream of
    copies.

    `first`: the array that lies lowest in memory; `places`: distances of rows from its beginning,
    in bytes. Copied block by block, rows of 784 bytes take three times as long.
    """
    row = np.dtype((np.void, target.nbytes // len(target)))
    # a view of each byte at which a row may begin, over memory of which the rows alone are read
    source = as_strided(
        first.reshape(-1).view(np.uint8)[: row.itemsize].view(row), (int(places.max()) + 1,), (1,)
    )
    rows = target.reshape(-1).view(row)
    num = COPIED_BYTES // row.itemsize
    if row.itemsize <= MOST_AT_ONCE // COPIED_AT_ONCE:
        num = max(num, COPIED_AT_ONCE)
    if num <= 1:
        for number, place in enumerate(places.tolist()):
            rows[number : number + 1] = source[place : place + 1]
        return
    for begin in range(0, len(rows), num):
        rows[begin : begin + num] = source[places[begin : begin + num]]


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """Open a file of a store. Raises UserError where it is missing or cannot be read, also in the
    body.
    """
    try:
        with file.open("rb") as content:
            yield content
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing from its store; {REMEDY}") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); {REMEDY}") from error
