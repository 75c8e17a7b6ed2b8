"""Groups and arrays of zarr, formats 2 and 3, read from the files of a listing, with zarr's errors as messages.

Importing this needs zarr.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.block_imports.source_files import SourceFile, list_source, read_part, read_source
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, parse_json

METADATA = (".zarray", ".zattrs", ".zgroup", "zarr.json")
METADATA_BYTES = 16 * MIB
"""Most bytes of a file of metadata."""
CHUNK_BYTES = 2**30
"""Most bytes of a chunk (of a shard, where it has them) once unpacked."""
TEXT_FILTERS = ("vlen-bytes", "vlen-utf8")
"""Filters of text of any length. No other filter of objects is read: pickles run code."""
CODECS = (
    "blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", "sharding_indexed", "bytes", "adler32", "astype", "bitround",
    "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32", "packbits", "quantize", "shuffle", "transpose",
    *TEXT_FILTERS,
)  # fmt: skip
"""Codecs that are read: those of numbers and of text."""
# Errors of zarr and its codecs for damaged metadata, unknown types and codecs, and damaged chunks.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError,
    MemoryError, ArithmeticError,
)  # fmt: skip
CHUNK_NAME = re.compile(r"(c[/.])?[0-9]+([/.][0-9]+)*|c")
"""Pattern of the names of an array's files of chunks, below its folder."""


@dataclass(frozen=True)
class ZarrFiles:
    """Files of a zarr store by name. What is not among them does not exist."""

    source: str
    """Folder or URI as it was given, for messages."""
    named: Mapping[str, SourceFile]
    """Files by their paths below the store's root, with slashes."""

    @classmethod
    def listed(cls, source: str) -> ZarrFiles:
        """List a store. Raises UserError for what is no folder, Unreachable where a URI does not answer."""
        return cls(source, {file.name: file for file in list_source("--source", source, whole=True).files})

    @classmethod
    def of_block(cls, source: str, block: InputBlock) -> ZarrFiles:
        """Return the files of a block."""
        return cls(source, {file.name: file for file in (*block.files, *block.beside)})

    def below(self, key: str) -> Iterator[SourceFile]:
        """Iterate over the files of the array or group `key`."""
        return (file for name, file in self.named.items() if name.startswith(f"{key}/"))

    def members(self, key: str = "") -> list[str]:
        """List the members of the group `key` (empty: the root) by name, whether or not they can be opened."""
        above = f"{key}/" if key else ""
        inside = (name.removeprefix(above) for name in self.named if name.startswith(above))
        return sorted({name.partition("/")[0] for name in inside if "/" in name and not name.startswith(".")})


class ListedStore(Store):
    """Store of zarr that reads the files of a listing.

    Reading raises Unreachable for a file behind a URI that cannot be read, and OSError for one of this machine.
    """

    supports_writes = supports_deletes = supports_listing = False

    def __init__(self, files: ZarrFiles) -> None:
        super().__init__(read_only=True)
        self.files = files

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read a file, or a part of one; None where there is none."""
        file = self.files.named.get(key)
        if file is None:
            return None
        match byte_range:
            case None:
                start, stop = 0, file.size
            case RangeByteRequest(start=start, end=stop):
                pass
            case OffsetByteRequest(offset=start):
                stop = file.size
            case _:
                start, stop = file.size - byte_range.suffix, file.size
        start, stop = max(0, min(start, file.size)), min(stop, file.size)
        return prototype.buffer.from_bytes(await asyncio.to_thread(read_part, file, start, max(0, stop - start)))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read parts of files."""
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Return True for a file of the listing."""
        return key in self.files.named

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    def list(self) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError


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
    """Open the root group of a store. Raises UserError where there is none."""
    try:
        # a consolidated copy of the metadata may differ from those that are checked
        return zarr.open_group(ListedStore(files), mode="r", use_consolidated=False)
    except UNREADABLE as error:
        source = files.source
        raise UserError(f"--source={source} is no zarr store ({_reason(error)}); name the folder of one.") from error


def open_array(files: ZarrFiles, key: str) -> ZarrArray:
    """Open the array `key` (`atpm/T`) of a store.

    Raises UserError where it cannot be opened, and for codecs and sizes of chunks that are not read: nothing is
    unpickled.
    """
    try:
        metadata = _array_metadata(files, key)
        found = zarr.open(ListedStore(files), path=key, mode="r") if metadata else None
    except UNREADABLE as error:
        raise RefusedSource(
            f"{files.source}: {key} cannot be opened ({_reason(error)}); copy the store again, or install its codec or "
            "a newer zarr."
        ) from error
    if not isinstance(getattr(found, "shape", None), tuple):
        raise UserError(f"{files.source}: {key} is no array; copy the store again, or name the folder of another.")
    array = ZarrArray(files, key, found)
    size = math.prod(array.array.shards or array.array.chunks) * array.dtype.itemsize
    if size > CHUNK_BYTES:
        raise RefusedSource(
            f"{files.source}: {key} is not read: its {array.kind_of_files} have {size:,} bytes each, and at most "
            f"{CHUNK_BYTES:,} are read at a time; export it again."
        )
    return array


def _array_metadata(files: ZarrFiles, key: str) -> Mapping[str, Any] | None:
    """Read the metadata of an array; None where there is none. Raises ValueError for codecs that are not read."""
    for name in ("zarr.json", ".zarray"):
        if (file := files.named.get(f"{key}/{name}")) is None:
            continue
        metadata = parse_json(read_source(file, METADATA_BYTES))
        if not isinstance(metadata, dict):
            raise ValueError(f"{name} holds a {type(metadata).__name__}, no object")
        if name == "zarr.json" and metadata.get("node_type") != "array":
            continue
        codecs = metadata.get("codecs") if name == "zarr.json" else [*(metadata.get("filters") or ())]
        codecs = [*(codecs or ()), *filter(None, [metadata.get("compressor")])]
        names = list(_codec_names(codecs))
        for codec in names:
            if codec not in CODECS:
                raise ValueError(f"its codec {codec!r} is not among those that are read ({', '.join(CODECS)})")
        dtype = metadata.get("dtype", "")
        if not isinstance(dtype, str) or (dtype == "|O" and not set(names) & set(TEXT_FILTERS)):
            raise ValueError("its values are objects or records of several fields, and numbers and text are read")
        return metadata
    return None


def _codec_names(codecs: Iterable[Any]) -> Iterator[str]:
    """Iterate over the names of codecs, those within shards among them."""
    for codec in codecs:
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec.get("id", codec.get("name")))[:60]
        settings = codec.get("configuration") or {}
        yield from _codec_names([*settings.get("codecs", ()), *settings.get("index_codecs", ())])


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message without the address of our store, which zarr quotes."""
    return re.sub(r" in store <[^>]*>", "", first_line(error))
