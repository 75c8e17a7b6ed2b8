"""Checks of a zarr store's files, metadata and chunks before zarr reads them.

Codecs have to be known and sizes to fit memory; no chunk unpacks to more than its array's shape says.
"""

from __future__ import annotations

import bz2
import lzma
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.source_files import SourceFile, list_folder, read_source
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB, parse_json

METADATA = (".zarray", ".zattrs", ".zgroup", "zarr.json")
METADATA_BYTES = 16 * MIB
"""Most bytes of a file of metadata."""
COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
"""Codecs whose chunks are checked to be no larger than their array says (`ChunkLimits`)."""
NUMBER_FILTERS = (
    "adler32", "astype", "bitround", "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32", "packbits",
    "quantize", "shuffle", "transpose",
)  # fmt: skip
TEXT_FILTERS = ("vlen-bytes", "vlen-utf8")
"""Filters of text of any length. No other filter of objects is read: pickles run code, the rest is unbounded."""
CHUNK_BYTES = 2**30
"""Most bytes of a chunk (of a shard, where it has them) once unpacked."""
TEXT_BYTES = 256 * MIB
"""Most bytes of a chunk of text of any length once unpacked."""
SLACK = 64 * 1024
"""Bytes that a chunk may have beyond twice its values': headers, checksums, a filter's wider type."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HEADER_BYTES = 32
_STREAMS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "lzma": lambda: lzma.LZMADecompressor(memlimit=TEXT_BYTES),
    "zlib": zlib.decompressobj,
}


@dataclass(frozen=True)
class ZarrFiles:
    """Files of a zarr store by name. What is not among them does not exist."""

    source: str
    """Folder or URI as it was given, for messages."""
    named: Mapping[str, SourceFile]
    """Files by their paths below the store's root, with slashes."""

    @classmethod
    def of_block(cls, source: str, block: InputBlock) -> ZarrFiles:
        """Return the files of a block."""
        return cls(source, {file.name: file for file in (*block.files, *block.beside)})

    def read(self, name: str, limit: int) -> bytes:
        """Read a file of at most `limit` bytes. Raises as `read_source` does; KeyError for another name."""
        return read_source(self.named[name], limit)

    def below(self, key: str) -> Iterator[SourceFile]:
        """Iterate over the files of the array or group `key`."""
        return (file for name, file in self.named.items() if name.startswith(f"{key}/"))

    def members(self, key: str = "") -> list[str]:
        """List the members of the group `key` (empty: the root) by name, whether or not they can be opened."""
        return sorted(self._members.get(key, ()))

    @cached_property
    def _members(self) -> dict[str, set[str]]:
        """Visible folders by the folder that they lie in."""
        found: dict[str, set[str]] = {}
        for name in self.named:
            folder = name.rpartition("/")[0]
            while folder:
                above, _, last = folder.rpartition("/")
                known = found.setdefault(above, set())
                if last in known:
                    break
                if not last.startswith("."):
                    known.add(last)
                folder = above
        return found


def list_zarr(source: str) -> ZarrFiles:
    """List the files of a store. Raises UserError for what is no folder, Unreachable where a URI does not answer."""
    return ZarrFiles(source, {file.name: file for file in list_folder("--source", source).files})


class RefusedArray(ValueError):
    """Array, or file of one, that is not read; the message says why."""


def array_metadata(files: ZarrFiles, key: str) -> Mapping[str, Any] | None:
    """Read the metadata of the array `key`; None where there is none.

    Raises OSError for a file that is not plain or too large, ValueError for one that is no JSON object, and
    RefusedArray for codecs that are not read.
    """
    for name, check in (("zarr.json", _check_format_3), (".zarray", _check_format_2)):
        if f"{key}/{name}" in files.named:
            metadata = parse_json(files.read(f"{key}/{name}", METADATA_BYTES))
            if not isinstance(metadata, dict):
                raise ValueError(f"{name} holds a {type(metadata).__name__}, no object")
            if name == ".zarray" or metadata.get("node_type") == "array":
                check(metadata)
                return metadata
    return None


def _check_format_2(metadata: Mapping[str, Any]) -> None:
    filters, compressor, dtype = metadata.get("filters") or [], metadata.get("compressor"), metadata.get("dtype", "")
    names = [_name(each, "id") for each in _listed(filters)]
    is_text = dtype == "|O"
    try:
        if not isinstance(dtype, str) or np.dtype(dtype).hasobject != is_text:
            raise RefusedArray("its values are records of several fields")
    except TypeError as error:
        raise RefusedArray(f"its dtype is unknown ({first_line(error)})") from error
    if is_text and (len(names) != 1 or names[0] not in TEXT_FILTERS):
        raise RefusedArray(f"its values are objects of {', '.join(names) or 'no filter'}, which may hold code")
    _check_known(names, TEXT_FILTERS if is_text else NUMBER_FILTERS)
    if compressor is not None:
        _check_known([_name(compressor, "id")], COMPRESSORS)


def _check_format_3(metadata: Mapping[str, Any]) -> None:
    names = [_name(each, "name") for each in _listed(metadata.get("codecs"))]
    if names == ["sharding_indexed"]:
        settings = metadata["codecs"][0].get("configuration") or {}
        index = [_name(each, "name") for each in _listed(settings.get("index_codecs"))]
        if index not in (["bytes"], ["bytes", "crc32c"]):
            raise RefusedArray(f"the index of its shards has the codecs {', '.join(index) or 'none'}")
        names = [_name(each, "name") for each in _listed(settings.get("codecs"))]
    _check_known(names, ("bytes", *TEXT_FILTERS, *NUMBER_FILTERS, *COMPRESSORS))
    if sum(name in COMPRESSORS for name in names) > 1:
        raise RefusedArray(f"its chunks are compressed more than once ({', '.join(names)})")


def holds_text(metadata: Mapping[str, Any]) -> bool:
    """Return True for an array whose chunks hold text of any length."""
    return any(filter_name in TEXT_FILTERS for filter_name in _filters(metadata))


def _filters(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of an array's codecs: of format 2 without the compressor, of format 3 those within shards."""
    if metadata.get("zarr_format") == 2:
        return [_name(each, "id") for each in metadata.get("filters") or []]
    names = [_name(each, "name") for each in metadata["codecs"]]
    if names == ["sharding_indexed"]:
        names = [_name(each, "name") for each in metadata["codecs"][0]["configuration"]["codecs"]]
    return names


def _listed(codecs: Any) -> list[Any]:
    if not isinstance(codecs, list):
        raise RefusedArray("its codecs are no list")
    return codecs


def _name(codec: Any, key: str) -> str:
    name = codec.get(key) if isinstance(codec, dict) else codec
    return str(name)[:60]


def _check_known(names: list[str], known: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RefusedArray(f"its codec {unknown[0]!r} is not among those that are read ({', '.join(COMPRESSORS)})")


def compressor_of(metadata: Mapping[str, Any]) -> str:
    """Return the name of an array's compressor; empty for none."""
    if metadata.get("zarr_format") == 2:
        return _name(metadata["compressor"], "id") if metadata.get("compressor") else ""
    return next((name for name in _filters(metadata) if name in COMPRESSORS), "")


@dataclass(frozen=True)
class ChunkLimits:
    """Limits of an array's chunks, by its shape and codecs."""

    compressor: str
    """Name of the codec that unpacks them; empty for none."""
    most: int
    """Most bytes of a chunk once unpacked."""
    elements: int
    """Values of a chunk."""
    is_text: bool
    in_shard: int
    """Chunks of a file; 1 without shards."""
    index_bytes: int
    """Bytes of the index of a shard; 0 without shards."""
    index_first: bool
    """True where the index stands at the beginning of a shard."""

    @classmethod
    def of(cls, array: Any, metadata: Mapping[str, Any]) -> ChunkLimits:
        """Return the limits of an open array. Raises RefusedArray for codecs that contradict it, and large chunks."""
        elements = max(1, math.prod(array.chunks))
        is_text = holds_text(metadata)
        if is_text != (array.dtype.kind in "OT"):
            raise RefusedArray(f"its codecs do not give values of its type, {array.dtype}")
        item = 8 if is_text else array.dtype.itemsize
        whole = math.prod(array.shards or array.chunks) * item
        if whole > CHUNK_BYTES:
            kind = "shards" if array.shards else "chunks"
            raise RefusedArray(f"its {kind} have {whole:,} bytes each, and at most {CHUNK_BYTES:,} are read at a time")
        most = TEXT_BYTES if is_text else 2 * elements * item + SLACK
        compressor = compressor_of(metadata)
        if not array.shards:
            return cls(compressor, most, elements, is_text, 1, 0, False)
        in_shard = math.prod(array.shards) // elements
        settings = metadata["codecs"][0]["configuration"]
        index_bytes = 16 * in_shard + 4 * (len(settings["index_codecs"]) - 1)  # a checksum of 4 bytes follows, if any
        index_first = settings.get("index_location") == "start"
        return cls(compressor, most, elements, is_text, in_shard, index_bytes, index_first)

    @property
    def file_bytes(self) -> int:
        """Most bytes of a file."""
        return self.in_shard * (self.most + 16) + SLACK

    def check_size(self, name: str, size: int) -> None:
        """Raise RefusedArray for a file of too many bytes."""
        if size > self.file_bytes:
            raise RefusedArray(f"{name} has {size:,} bytes, and a chunk takes at most {self.file_bytes:,}")

    def check_file(self, name: str, content: bytes) -> None:
        """Check a file's chunks. Raises RefusedArray for one that unpacks to more than the array's shape says."""
        for chunk in self._of_shard(content) if self.index_bytes else (content,):
            self._check(name, chunk)

    def check_part(self, name: str, content: bytes, start: int, is_end: bool) -> None:
        """Check a chunk, or the index, that was read by itself from offset `start` of a shard; `is_end`: as its end."""
        if self.index_first and start == 0 and len(content) == self.index_bytes:
            if any(offset < self.index_bytes for offset, _ in self._entries(content)):
                raise RefusedArray(f"{name} is damaged: its index names chunks within itself")
        elif self.index_first or not is_end:
            self._check(name, content)

    def _check(self, name: str, chunk: bytes) -> None:
        if _unpacked_size(self.compressor, chunk, self.most) > self.most:
            raise RefusedArray(f"{name} is damaged, or unpacks to more than a chunk's {self.most:,} bytes")
        if self.is_text and _num_texts(self.compressor, chunk, self.most) > self.elements:
            raise RefusedArray(f"{name} is damaged, or holds more than a chunk's {self.elements:,} texts")

    def _of_shard(self, content: bytes) -> Iterator[bytes]:
        """Iterate over a shard's chunks, by the index at its end or its beginning."""
        size = len(content)
        if self.index_bytes > size:
            return  # zarr names a damaged shard
        for offset, length in self._entries(
            content[: self.index_bytes] if self.index_first else content[-self.index_bytes :]
        ):
            if offset <= size and length <= size:  # else absent, or damaged
                yield content[offset : offset + length]

    def _entries(self, index: bytes) -> Iterator[tuple[int, int]]:
        """Iterate over offset and length of a shard's chunks."""
        return struct.iter_unpack("<QQ", index[: 16 * self.in_shard])


def _unpacked_size(compressor: str, chunk: bytes, most: int) -> int:
    """Return the bytes that a chunk unpacks to, or any number above `most` where it is more."""
    if not compressor:
        return len(chunk)
    head = chunk[:HEADER_BYTES]
    match compressor:
        case "blosc":
            return int.from_bytes(head[4:8], "little") if len(head) >= 16 else 0
        case "lz4":
            return int.from_bytes(head[:4], "little")
        case "zstd":
            known = _zstd_size(head)
            return _zstd_streamed_size(chunk, most) if known is None else known
    return len(_unpacked(compressor, chunk, most))


def _zstd_size(head: bytes) -> int | None:
    """Return the size in the header of a frame (RFC 8878, section 3.1.1.1), 0 for none; None where it is not there."""
    if head[:4] != ZSTD_MAGIC or len(head) < 6:
        return 0
    flag, is_single = head[4] >> 6, head[4] >> 5 & 1
    width = (is_single, 2, 4, 8)[flag]
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[head[4] & 3]
    return int.from_bytes(head[start : start + width], "little") + (256 if width == 2 else 0) if width else None


def _zstd_streamed_size(chunk: bytes, most: int) -> int:
    import pyarrow as pa

    size = 0
    with suppress(OSError, pa.ArrowException), pa.CompressedInputStream(pa.BufferReader(chunk), "zstd") as stream:
        while size <= most and (block := stream.read(MIB)):
            size += len(block)
    return size


def _unpacked(compressor: str, chunk: bytes, most: int) -> bytes:
    """Unpack all streams of a chunk, up to one byte beyond `most`; of a damaged one, what lies before the damage."""
    unpacked = bytearray()
    with suppress(OSError, EOFError, zlib.error, lzma.LZMAError, ValueError):
        while chunk and len(unpacked) <= most:
            stream = _STREAMS[compressor]()
            unpacked += stream.decompress(chunk, most + 1 - len(unpacked))
            if not stream.eof:
                break
            chunk = stream.unused_data
    return bytes(unpacked)


def _num_texts(compressor: str, data: bytes, most: int) -> int:
    """Return the number of texts that a chunk says it holds, for which memory is taken; 0 for a damaged one."""
    import numcodecs

    if compressor in _STREAMS:
        data = _unpacked(compressor, data, most)
    elif compressor:
        try:
            data = bytes(numcodecs.get_codec({"id": compressor}).decode(data))
        except (ValueError, RuntimeError, OSError):
            return 0
    return int.from_bytes(data[:4], "little")
