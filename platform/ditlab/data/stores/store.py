"""Arrow store: memory-mapped, checked, read without copies."""

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ditlab.data.stores.arrow_file import first_batch
from ditlab.data.stores.manifest import MANIFEST_NAME, StoredColumn, StoreManifest, StoreShard
from ditlab.data.stores.manifest_parsing import parse_manifest, read_manifest_bytes
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_plain


class Store:
    """Open Arrow store. Every shard is mapped once; tensors share the map's pages.

    The maps are private (copy on write): a tensor written to by mistake changes nothing on disk.
    """

    def __init__(self, path: Path, manifest: StoreManifest):
        """Make a store of a manifest alone, whose rows cannot be read; use `open` for one with rows."""
        self.path = path
        self.manifest = manifest
        self._shards: list[dict[str, Tensor]] = []
        self._ends = np.cumsum([shard.rows for shard in manifest.shards])

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> "Store":
        """Open the store in a folder; `verify` reads every shard once and compares its SHA-256 (about 1 GB/s).

        Raises UserError where there is no store, its format is another version's, or a shard or an attachment is
        missing or altered. Without `verify`, of shards sizes alone are compared.
        """
        manifest = read_manifest(path)
        for shard in manifest.shards:
            _check_shard(path / shard.file, shard, verify)
        for name, digest in manifest.attachments.items():
            _check_attachment(path / name, digest)
        store = cls(path, manifest)
        store._shards = [_map_shard(path / shard.file, shard, manifest.columns) for shard in manifest.shards]
        return store

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

    def tensor(self, column: str) -> Tensor:
        """Return the whole column, (rows, *shape): the map itself in a store of one shard, else a copy."""
        parts = [shard[column] for shard in self._shards]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy the given rows of a column in the given order: (len(rows), *shape).

        `rows`: int64, in [0, len(store)); `out`: tensor to copy into.
        """
        if len(self._shards) == 1:
            return _take(self._shards[0][column], rows, out)
        if out is None:
            first = self._shards[0][column]
            out = torch.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        shard_of_row = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(shard_of_row):
            here = np.flatnonzero(shard_of_row == number)
            start = int(self._ends[number]) - self.manifest.shards[number].rows
            # through NumPy: torch cannot assign to indices of uint16
            out.numpy()[here] = _take(self._shards[number][column], rows[here] - start).numpy()
        return out


def read_manifest(path: Path) -> StoreManifest:
    """Read the `store.json` in a folder. Raises UserError where it is missing, unreadable or of another version."""
    file = path / MANIFEST_NAME
    return parse_manifest(read_manifest_bytes(file), str(file))


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
"""Errors of pyarrow, NumPy and torch for a file that is no Arrow file of a manifest's columns."""
_REMEDY = "remove the store's folder and import the data again with `ditlab data import`."


@contextmanager
def _opened(file: Path) -> Iterator[BufferedReader]:
    """Open a file of a store. Raises UserError where it is missing or cannot be read, also in the body."""
    try:
        with open_plain(file) as content:
            yield content
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing from its store; {_REMEDY}") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); {_REMEDY}") from error


def _check_shard(file: Path, shard: StoreShard, verify: bool) -> None:
    with _opened(file) as content:
        size = os.fstat(content.fileno()).st_size
        if size != shard.bytes:
            raise UserError(f"{file} was altered: it has {size} bytes, and its manifest says {shard.bytes}; {_REMEDY}")
        if verify:
            _check_digest(file, content, shard.sha256)


def _check_attachment(file: Path, sha256: str) -> None:
    with _opened(file) as content:
        _check_digest(file, content, sha256)


def _check_digest(file: Path, content: BufferedReader, sha256: str) -> None:
    digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != sha256:
        raise UserError(
            f"{file} was altered: its SHA-256 is {digest[:16]}..., and its manifest says {sha256[:16]}...; {_REMEDY}"
        )


def _map_shard(file: Path, shard: StoreShard, columns: Mapping[str, StoredColumn]) -> dict[str, Tensor]:
    """Return tensors over a shard's memory map, (shard.rows, *shape) each, which keep the map alive.

    Raises UserError where the file is no Arrow file of these columns, although its size is that of the manifest.
    """
    try:
        return _tensors(file, shard, columns)
    except UNREADABLE as error:
        raise UserError(f"{file} does not hold the columns of its manifest ({first_line(error)}); {_REMEDY}") from error


def _tensors(file: Path, shard: StoreShard, columns: Mapping[str, StoredColumn]) -> dict[str, Tensor]:
    with _opened(file) as content:
        pages = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = pa.py_buffer(pages)
    batch = first_batch(whole)
    if batch.num_rows != shard.rows:
        raise ValueError(f"{batch.num_rows:,} rows, not {shard.rows:,}")
    tensors = {}
    for name, column in columns.items():
        array = batch.column(name)
        elements = array.storage.flatten() if column.shape else array
        flat = torch.frombuffer(
            pages,
            dtype=getattr(torch, column.stored_dtype.name),
            count=shard.rows * column.row_elements,
            offset=elements.buffers()[1].address - whole.address,
        )
        tensor = flat.view(shard.rows, *column.shape)
        tensors[name] = tensor.view(torch.bool) if column.dtype == "bool" else tensor
    return tensors


def _take(values: Tensor, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
    """Return `values[rows]`, computed on the calling thread without the GIL.

    torch.index_select would bring up a team of OpenMP threads in the loader's thread, beside the training step's:
    where the cores are taken, each of its barriers was seen to wait for milliseconds.
    """
    if out is None:
        return torch.from_numpy(np.take(values.numpy(), rows, axis=0))
    np.take(values.numpy(), rows, axis=0, out=out.numpy(), mode="clip")  # mode="raise" goes through a copy
    return out
