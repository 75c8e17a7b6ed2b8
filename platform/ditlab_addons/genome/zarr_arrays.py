"""Groups and arrays of zarr, formats 2 and 3, read from the files of a listing, with zarr's errors
as messages.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from ditlab.data.import_blocks import RefusedSource
from ditlab.data.source_files import SourceFile, list_source, read_part, read_source
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import parse_json

METADATA = (".zarray", ".zattrs", ".zgroup", "zarr.json")
CHUNK_BYTES = 2**30
"""Most bytes of a chunk (of a shard, where it has them) once unpacked."""
TEXT_FILTERS = ("vlen-bytes", "vlen-utf8")
"""Filters of text of any length. No other filter of objects is read: pickles run code."""
CODECS = (
    "blosc",
    "bz2",
    "gzip",
    "lz4",
    "lzma",
    "zlib",
    "zstd",
    "sharding_indexed",
    "bytes",
    "adler32",
    "astype",
    "bitround",
    "crc32",
    "crc32c",
    "delta",
    "fixedscaleoffset",
    "fletcher32",
    "packbits",
    "quantize",
    "shuffle",
    "transpose",
    *TEXT_FILTERS,
)
"""Codecs that are read: those of numbers and of text."""
# Errors of zarr and its codecs for damaged metadata, unknown types and codecs, and damaged chunks.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    MemoryError,
    ArithmeticError,
)


class ZarrFiles(Store):
    """Zarr store of the files of a listing: what is not among them does not exist.

    Reading raises Unreachable for a file behind a URI that cannot be read, and OSError for one of
    this machine.
    """

    supports_writes = supports_deletes = supports_listing = False

    def __init__(self, source: str, files: Iterable[SourceFile]) -> None:
        """Name the files of a store, or those of a block of it; `source`: folder or URI as it was
        given.
        """
        super().__init__(read_only=True)
        self.source = source
        self.named = {file.name: file for file in files}
        """Files by their paths below the store's root, with slashes."""

    @classmethod
    def listed(cls, source: str) -> ZarrFiles:
        """List a store. Raises UserError for what is no folder, Unreachable where a URI does not
        answer.
        """
        return cls(source, list_source(source))

    def members(self, key: str = "") -> list[str]:
        """List the members of the group `key` (empty: the root) by name, whether or not they can be
        opened.
        """
        above = f"{key}/" if key else ""
        inside = (name.removeprefix(above) for name in self.named if name.startswith(above))
        return sorted(
            {name.partition("/")[0] for name in inside if "/" in name and not name.startswith(".")}
        )

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a file, or a part of one; None where there is none."""
        file = self.named.get(key)
        if file is None:
            return None
        start = 0
        stop = file.size
        if isinstance(byte_range, RangeByteRequest):
            start = byte_range.start
            stop = min(byte_range.end, stop)
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = max(0, stop - byte_range.suffix)
        return prototype.buffer.from_bytes(
            await asyncio.to_thread(read_part, file, start, max(0, stop - start))
        )

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read parts of files."""
        return list(
            await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))
        )

    async def exists(self, key: str) -> bool:
        """Return True for a file of the listing."""
        return key in self.named

    async def _unsupported(self, *_: Any) -> Any:
        raise NotImplementedError(
            "a store that is imported is only read, by the names of its files"
        )

    set = delete = list = list_prefix = list_dir = _unsupported


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
    def file_shape(self) -> tuple[int, ...]:
        """Shape of the part in a file: of a chunk, or of a shard where it has them."""
        return tuple(self.array.shards or self.array.chunks)

    def read(self, part: slice = slice(None)) -> np.ndarray:
        """Read some rows. Raises RefusedSource where a chunk cannot be read, and Unreachable as its
        place does.
        """
        try:
            return np.asarray(self.array[part])
        except UNREADABLE as error:
            rows = "" if part.start is None else f" from row {part.start:,}"
            raise RefusedSource(
                f"{self.files.source}: {self.key} cannot be read{rows} ({first_line(error)}); "
                "copy the store again."
            ) from error

    def chunk_files(self, start: int, stop: int) -> Iterator[SourceFile]:
        """Iterate over the files of the chunks of rows `start` to `stop`, as far as there are
        any.
        """
        sizes = self.file_shape
        rows = range(start // sizes[0], -(-stop // sizes[0]))
        others = (
            range(-(-num // size)) for num, size in zip(self.shape[1:], sizes[1:], strict=True)
        )
        for place in product(rows, *others):
            name = f"{self.key}/{self.array.metadata.encode_chunk_key(place)}"
            if name in self.files.named:
                yield self.files.named[name]

    @property
    def metadata_files(self) -> list[SourceFile]:
        """Files of its metadata."""
        return [file for name in METADATA if (file := self.files.named.get(f"{self.key}/{name}"))]

    @property
    def kind_of_files(self) -> str:
        """Name of its files: `chunks`, or `shards`."""
        return "shards" if self.array.shards else "chunks"


def open_group(files: ZarrFiles) -> Any:
    """Open the root group of a store. Raises UserError where there is none."""
    try:
        # a consolidated copy of the metadata may differ from those that are checked
        return zarr.open_group(files, mode="r", use_consolidated=False)
    except UNREADABLE as error:
        source = files.source
        raise UserError(
            f"--source={source} is no zarr store ({_reason(error)}); name the folder of one."
        ) from error


def open_array(files: ZarrFiles, key: str) -> ZarrArray:
    """Open the array `key` (`atpm/T`) of a store. Raises UserError where it is not read, nor its
    codecs or chunks.
    """
    try:
        for name in ("zarr.json", ".zarray"):
            file = files.named.get(f"{key}/{name}")
            if file is not None:
                _check_codecs(name, parse_json(read_source(file)))
        found = zarr.open(files, path=key, mode="r")
    except UNREADABLE as error:
        raise RefusedSource(
            f"{files.source}: {key} cannot be opened ({_reason(error)}); copy the store again, "
            "or install its codec or a newer zarr."
        ) from error
    if not isinstance(found, zarr.Array):
        raise UserError(
            f"{files.source}: {key} is no array; copy the store again, or name the folder of "
            "another."
        )
    array = ZarrArray(files, key, found)
    size = math.prod(array.file_shape) * array.dtype.itemsize
    if size > CHUNK_BYTES:
        raise RefusedSource(
            f"{files.source}: {key} is not read: its {array.kind_of_files} have {size:,} bytes "
            f"each, and at most {CHUNK_BYTES:,} are read at a time; export it again."
        )
    return array


def _check_codecs(name: str, metadata: Any) -> None:
    """Check the metadata in the file `name` of an array. Raises ValueError for codecs and types
    that are not read.
    """
    if not isinstance(metadata, dict):
        raise ValueError(f"{name} holds a {type(metadata).__name__}, no object")
    codecs = metadata.get("codecs") if name == "zarr.json" else metadata.get("filters")
    waiting = [*(codecs or ()), *filter(None, [metadata.get("compressor")])]
    names = []
    while waiting:
        codec = waiting.pop(0)
        if isinstance(codec, str):
            names.append(codec)
            continue
        names.append(str(codec.get("id", codec.get("name")))[:60])
        settings = codec.get("configuration") or {}
        waiting += [*settings.get("codecs", ()), *settings.get("index_codecs", ())]
    for each in names:
        if each not in CODECS:
            raise ValueError(
                f"its codec {each!r} is not among those that are read ({', '.join(CODECS)})"
            )
    dtype = metadata.get("dtype", "")
    if not isinstance(dtype, str) or (dtype == "|O" and not {*names} & {*TEXT_FILTERS}):
        raise ValueError(
            "its values are objects or records of several fields, and numbers and text are read"
        )


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message without the address of our store, which zarr
    quotes.
    """
    return re.sub(r" in store <[^>]*>", "", first_line(error))
