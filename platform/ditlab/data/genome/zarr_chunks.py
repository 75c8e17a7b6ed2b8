"""Limits of zarr's chunks, checked before these are decoded: none unpacks to more than its array's shape says."""

import bz2
import lzma
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ditlab.data.genome.zarr_metadata import RefusedArray, compressor_of, holds_text
from ditlab.storage.plain_files import MIB

CHUNK_BYTES = 2**30
"""Most bytes of a chunk (of a shard, where it has them) once unpacked."""
TEXT_BYTES = 256 * MIB
"""Most bytes of a chunk of text of any length once unpacked."""
SLACK = 64 * 1024
"""Bytes that a chunk may have beyond twice its values': headers, checksums, a filter's wider type."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
HEADER_BYTES = 32


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
    def of(cls, array: Any, metadata: Mapping[str, Any]) -> "ChunkLimits":
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
