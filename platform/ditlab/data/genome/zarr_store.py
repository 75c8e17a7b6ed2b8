"""Store of zarr that reads the files of a listing, each checked before zarr decodes it. Importing this needs zarr."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from ditlab.data.block_imports.source_files import read_part
from ditlab.data.genome.zarr_checks import METADATA, METADATA_BYTES, ChunkLimits, ZarrFiles


class CheckedStore(Store):
    """Store that can be read only: metadata, and the chunks of arrays whose limits are known. No other file is there.

    Reading raises RefusedArray for a chunk beyond its limits, Unreachable for a file behind a URI that cannot be read,
    and OSError for one of this machine.
    """

    supports_writes = supports_deletes = supports_listing = False

    def __init__(self, files: ZarrFiles) -> None:
        super().__init__(read_only=True)
        self.files = files
        self.limits: dict[str, ChunkLimits] = {}
        """Limits of the chunks of each array, by its key."""

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read a file, or a part of one; None where there is none."""
        content = await asyncio.to_thread(self._read, key, byte_range)
        return None if content is None else prototype.buffer.from_bytes(content)

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        file = self.files.named.get(key)
        if file is not None and key.rpartition("/")[2] in METADATA:
            return self.files.read(key, METADATA_BYTES)
        array = next((array for array in self.limits if key.startswith(f"{array}/")), None)
        if file is None or array is None:
            return None
        name, limits = key.removeprefix(f"{array}/"), self.limits[array]
        if byte_range is None:
            content = self.files.read(key, limits.file_bytes)
            limits.check_file(name, content)
            return content
        start, stop = _part(byte_range, file.size)
        content = read_part(file, start, max(0, stop - start))
        limits.check_part(name, content, start, stop == file.size and isinstance(byte_range, SuffixByteRequest))
        return content

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


def _part(byte_range: Any, size: int) -> tuple[int, int]:
    """Return the bytes of a file of `size` bytes that are asked for, half open."""
    match byte_range:
        case RangeByteRequest(start=start, end=end):
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset=offset):
            return min(offset, size), size
        case _:
            return max(0, size - byte_range.suffix), size
