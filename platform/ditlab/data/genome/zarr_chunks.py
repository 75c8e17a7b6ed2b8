"""Checks of zarr's chunks before they are decoded: none unpacks to more than the shape of its array says."""

import bz2
import lzma
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from ditlab.data.genome.zarr_metadata import RefusedArray, chunk_files, compressor_of, holds_text
from ditlab.storage.plain_files import MIB, open_plain

CHUNK_BYTES = 2**30
"""Most bytes of a chunk (of a shard, where it has them) once unpacked."""
TEXT_BYTES = 256 * MIB
"""Most bytes of a chunk of text of any length once unpacked."""
SLACK = 64 * 1024
"""Bytes that a chunk may have beyond twice its values': headers, checksums, a filter's wider type."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HEADER_BYTES = 32


@dataclass(frozen=True)
class StoredChunk:
    """Encoded chunk within an open file."""

    file: BufferedReader
    offset: int
    length: int

    def read(self, most: int | None = None) -> bytes:
        """Read the chunk, or its first `most` bytes."""
        self.file.seek(self.offset)
        return self.file.read(self.length if most is None else min(most, self.length))


def check_chunks(folder: Path, array: Any, metadata: Mapping[str, Any]) -> None:
    """Check all chunks of the open array in a folder, of which no more than their headers are read where these suffice.

    Raises RefusedArray for one that unpacks to more than the array's shape says, and OSError as `open_plain` does.
    """
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
    in_shard = math.prod(array.shards) // elements if array.shards else 1
    compressor = compressor_of(metadata)
    for file in chunk_files(folder, in_shard * (most + 16) + SLACK):
        name = file.relative_to(folder)
        with open_plain(file, follow=True) as content:
            size = content.seek(0, os.SEEK_END)
            stored = _of_shard(content, size, in_shard, metadata) if array.shards else [StoredChunk(content, 0, size)]
            for chunk in stored:
                if _unpacked_size(compressor, chunk, most) > most:
                    raise RefusedArray(f"{name} is damaged, or unpacks to more than a chunk's {most:,} bytes")
                if is_text and _num_texts(compressor, chunk, most) > elements:
                    raise RefusedArray(f"{name} is damaged, or holds more than a chunk's {elements:,} texts")


def _of_shard(file: BufferedReader, size: int, num: int, metadata: Mapping[str, Any]) -> Iterator[StoredChunk]:
    """Iterate over a shard's chunks, by the index at its end or its beginning."""
    settings = metadata["codecs"][0]["configuration"]
    index = 16 * num + 4 * (len(settings["index_codecs"]) - 1)  # a checksum of 4 bytes follows, if any
    if index > size:
        return  # zarr names a damaged shard
    file.seek(0 if settings.get("index_location") == "start" else size - index)
    for offset, length in struct.iter_unpack("<QQ", file.read(16 * num)):
        if offset <= size and length <= size:  # else absent, or damaged
            yield StoredChunk(file, offset, length)


def _unpacked_size(compressor: str, chunk: StoredChunk, most: int) -> int:
    """Return the bytes that a chunk unpacks to, or any number above `most` where it is more."""
    if not compressor:
        return chunk.length
    head = chunk.read(HEADER_BYTES)
    match compressor:
        case "blosc":
            return int.from_bytes(head[4:8], "little") if len(head) >= 16 else 0
        case "lz4":
            return int.from_bytes(head[:4], "little")
        case "zstd":
            known = _zstd_size(head)
            return _zstd_streamed_size(chunk.read(), most) if known is None else known
    return len(_unpacked(compressor, chunk.read(), most))


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


_STREAMS: dict[str, Callable[[], Any]] = {
    "bz2": bz2.BZ2Decompressor,
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "lzma": lambda: lzma.LZMADecompressor(memlimit=TEXT_BYTES),
    "zlib": zlib.decompressobj,
}


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


def _num_texts(compressor: str, chunk: StoredChunk, most: int) -> int:
    """Return the number of texts that a chunk says it holds, for which memory is taken; 0 for a damaged one."""
    import numcodecs

    data = chunk.read()
    if compressor in _STREAMS:
        data = _unpacked(compressor, data, most)
    elif compressor:
        try:
            data = bytes(numcodecs.get_codec({"id": compressor}).decode(data))
        except (ValueError, RuntimeError, OSError):
            return 0
    return int.from_bytes(data[:4], "little")
