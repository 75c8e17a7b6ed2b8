"""Opening a file of a source for reading, on this machine or behind a URI."""

import io
import time
from functools import lru_cache
from typing import Any, BinaryIO, cast

from ditlab.data.block_imports.listing import SourceFile
from ditlab.errors import Unreachable, first_line
from ditlab.storage.plain_files import open_plain, read_plain

READ_BYTES = 4 << 20
"""Bytes of a request to an object store, where a file is read in its order."""
_PAUSES = (0.5, 2.0, 8.0)
"""Seconds between attempts to read from a URI: the library has tried again by itself before."""


def open_source(file: SourceFile, limit: int | None = None, buffer: int = READ_BYTES) -> BinaryIO:
    """Open a file, which can be read from any place of it. `limit` bounds its size in bytes, `buffer` a request's.

    A file behind a URI raises Unreachable, no OSError, where it cannot be read after some attempts: so that it is not
    taken for a damaged one. Raises UnusableFile for what is no plain file and for a larger one, and OSError otherwise.
    """
    if not file.is_remote:
        return open_plain(file.path, limit, follow=True)
    if limit is not None and file.size > limit:
        raise OSError(f"{file.size:,} bytes, more than {limit:,}")
    return cast(BinaryIO, io.BufferedReader(RemoteStream(file), buffer))


def read_source(file: SourceFile, limit: int) -> bytes:
    """Read a file of at most `limit` bytes. Raises as `open_source` does."""
    if not file.is_remote:
        return read_plain(file.path, limit, follow=True)
    if file.size > limit:
        raise OSError(f"{file.size:,} bytes, more than {limit:,}")
    return read_part(file, 0, file.size)


def read_part(file: SourceFile, start: int, length: int) -> bytes:
    """Read up to `length` bytes from offset `start`, in one request behind a URI. Raises as `open_source` does."""
    with open_source(file, buffer=max(1, min(length, READ_BYTES))) as stream:
        stream.seek(start)
        return stream.read(length)  # of `read()` without a length Python asks 8 KiB at a time


@lru_cache(maxsize=64)
def _files(root: str) -> Any:
    from ditlab.storage.remote import RemoteFiles

    return RemoteFiles.open("--source", root)


class RemoteStream(io.RawIOBase):
    """File behind a URI, read again from where it broke off."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._place, self._opened = file, 0, None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place of the file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Raises Unreachable after some attempts."""
        wanted = max(0, min(len(buffer), self._file.size - self._place))
        for pause in (*_PAUSES, None):
            try:
                content = self._read(wanted)
                break
            except Exception as error:  # each of fsspec's libraries has exceptions of its own
                self._opened = None
                if pause is None:
                    raise Unreachable(
                        f"--source={self._file.root}: {self._file.shown} cannot be read ({first_line(error)}); check "
                        "the store and the credentials in the environment, and give the same command again."
                    ) from error
                time.sleep(pause)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def close(self) -> None:
        """Close the file."""
        self._opened = None
        super().close()

    def _read(self, wanted: int) -> bytes:
        if not wanted:
            return b""
        if self._opened is None:
            files = _files(self._file.root)
            self._opened = files.filesystem.open_input_file(f"{files.path}/{self._file.name}")
        content: bytes = self._opened.read_at(wanted, self._place)  # type: ignore[attr-defined]
        if len(content) != wanted:
            raise OSError(f"{len(content):,} bytes in place of {wanted:,} at offset {self._place:,}")
        return content
