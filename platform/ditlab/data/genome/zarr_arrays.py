"""Groups and arrays of zarr, formats 2 and 3, opened and read with zarr's errors turned into messages."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.block_imports.source_files import SourceFile, file_problem
from ditlab.data.genome.zarr_checks import METADATA, ChunkLimits, RefusedArray, ZarrFiles, array_metadata
from ditlab.errors import UserError, first_line

# Errors of zarr and its codecs for damaged metadata, unknown types and codecs, and damaged chunks.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError,
    MemoryError, ArithmeticError,
)  # fmt: skip

CHUNK_NAME = re.compile(r"(c[/.])?[0-9]+([/.][0-9]+)*|c")
"""Pattern of the names of an array's files of chunks, below its folder."""


@dataclass(frozen=True)
class ZarrArray:
    """Open array."""

    files: ZarrFiles
    key: str
    """Its path below the store's root: `atpm/T`."""
    array: Any
    """Array of zarr."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> Any:
        """Type of its values."""
        return self.array.dtype

    @property
    def chunk_rows(self) -> int:
        """Rows of a file of chunks, of a shard where it has them."""
        return int((self.array.shards or self.array.chunks)[0])

    def read(self, part: slice = slice(None)) -> np.ndarray:
        """Read some rows. Raises RefusedSource where a chunk cannot be read, and Unreachable as its place does."""
        try:
            return np.asarray(self.array[part])
        except RefusedArray as error:
            raise _refused(self.files, self.key, error) from error
        except UNREADABLE as error:
            rows = "" if part.start is None else f" from row {part.start:,}"
            raise RefusedSource(
                f"{self.files.source}: {self.key} cannot be read{rows} ({first_line(error)}); copy the store again."
            ) from error

    def chunk_files(self, start: int, stop: int) -> Iterator[SourceFile]:
        """Iterate over the files of the chunks of rows `start` to `stop`, as far as there are any."""
        grid = [range(number) for number in self._grid]
        grid[0] = range(start // self.chunk_rows, -(-stop // self.chunk_rows))
        for place in np.ndindex(*map(len, grid)):
            name = self.array.metadata.encode_chunk_key((place[0] + grid[0].start, *place[1:]))
            if (file := self.files.named.get(f"{self.key}/{name}")) is not None:
                yield file

    @property
    def metadata_files(self) -> tuple[SourceFile, ...]:
        """Files of its metadata."""
        names = (f"{self.key}/{name}" for name in METADATA)
        return tuple(self.files.named[name] for name in names if name in self.files.named)

    @property
    def kind_of_files(self) -> str:
        """Name of its files: `chunks`, or `shards`."""
        return "shards" if self.array.shards else "chunks"

    @property
    def num_files(self) -> int:
        """Number of its chunks (shards, where it has them)."""
        return math.prod(self._grid)

    @cached_property
    def num_missing(self) -> int:
        """Number of those without a file: zarr reads these as zeros."""
        names = (file.name.removeprefix(f"{self.key}/") for file in self.files.below(self.key))
        return self.num_files - sum(bool(CHUNK_NAME.fullmatch(name)) for name in names)

    @property
    def _grid(self) -> list[int]:
        """Files of chunks along each dimension."""
        sizes = self.array.shards or self.array.chunks
        return [math.ceil(number / size) for number, size in zip(self.array.shape, sizes, strict=True)]


def open_group(files: ZarrFiles) -> Any:
    """Open the root group of a store. Raises UserError where zarr is not installed, or there is no group."""
    try:
        import zarr

        from ditlab.data.genome.zarr_store import CheckedStore
    except ImportError as error:
        raise UserError(
            "reading GET's stores needs zarr, which is not installed; `pip install 'ditlab[get]'` brings it."
        ) from error
    try:
        store = CheckedStore(files)
        return zarr.open_group(store, mode="r", use_consolidated=False)  # a copy of the metadata, which may differ
    except UNREADABLE as error:
        source = files.source
        raise UserError(f"--source={source} is no zarr store ({_reason(error)}); name the folder of one.") from error


def open_array(files: ZarrFiles, key: str) -> ZarrArray:
    """Open the array `key` (`atpm/T`) of a store; its chunks are checked when they are read.

    Raises UserError where it cannot be opened, for codecs and sizes that are not read, and for files that are none.
    """
    import zarr

    from ditlab.data.genome.zarr_store import CheckedStore

    store = CheckedStore(files)
    try:
        metadata = array_metadata(files, key)
        found = zarr.open(store, path=key, mode="r") if metadata else None
        is_array = isinstance(getattr(found, "shape", None), tuple)
        if is_array and metadata is not None:
            store.limits[key] = ChunkLimits.of(found, metadata)
            # A local file that cannot be read (a pipe, a link to nowhere) or is too large is refused.
            for file in files.below(key):
                name = file.name.removeprefix(f"{key}/")
                if name in METADATA:
                    continue
                if not file.is_remote and (problem := file_problem(file.path)):
                    raise RefusedArray(f"{name}: {problem}")
                (store.limits[key]).check_size(name, file.size)
    except RefusedArray as error:
        raise _refused(files, key, error) from error
    except UNREADABLE as error:
        raise RefusedSource(
            f"{files.source}: {key} cannot be opened ({_reason(error)}); copy the store again, or install its codec or "
            "a newer zarr."
        ) from error
    if not is_array:
        raise UserError(f"{files.source}: {key} is no array; copy the store again, or name the folder of another.")
    return ZarrArray(files, key, found)


def _refused(files: ZarrFiles, key: str, error: RefusedArray) -> RefusedSource:
    return RefusedSource(f"{files.source}: {key} is not read: {error}; copy or export it again.")


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message without the address of our store, which zarr quotes."""
    return re.sub(r" in store <[^>]*>", "", first_line(error))
