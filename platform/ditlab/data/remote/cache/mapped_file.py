"""Memory maps of files that nobody may delete while they are read."""

import ctypes
import fcntl
import mmap
import os
import stat
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from ditlab.storage.plain_files import UnusableFile

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class MappedBytes:
    """Count of the bytes that a process has mapped, of one cache."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Add bytes; a negative number takes them off."""
        with self._lock:
            self.total += num_bytes


class MappedFile:
    """A file's content as memory. The lock of its descriptor lasts as long as the map, though the descriptor closes.

    Python's `mmap` keeps a descriptor open for each map: a window of a thousand blocks would use up a process's 1,024.
    """

    def __init__(self, descriptor: int, size: int, mapped: MappedBytes) -> None:
        """Map `size` bytes, at least one, of an open file that has as many."""
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address, self._size = address, size
        mapped.add(size)
        # not at exit: threads that still read would meet memory that is gone
        weakref.finalize(self, _unmap, address, size, mapped).atexit = False

    def buffer(self) -> pa.Buffer:
        """The content, which keeps the map; read-only."""
        return pa.foreign_buffer(self._address, self._size, base=self)


def _unmap(address: int, size: int, mapped: MappedBytes) -> None:
    _libc.munmap(address, size)
    mapped.add(-size)


def map_locked(descriptor: int, mapped: MappedBytes) -> pa.Buffer | None:
    """Map an open, locked file whole, and close its descriptor; None for an empty one, and where memory is short."""
    try:
        size = os.fstat(descriptor).st_size
        return MappedFile(descriptor, size, mapped).buffer() if size else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def open_locked(path: Path, flags: int, operation: int) -> int | None:
    """Open a regular file and lock it by `operation` (`fcntl.LOCK_SH` or LOCK_EX), without waiting.

    Returns its descriptor, whose lock also ends with the process; None where another holds a lock against it. Raises
    FileNotFoundError also for a file that is deleted or replaced meanwhile, OSError for anything but a regular one.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o644)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UnusableFile("no plain file", path)
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if not os.path.samestat(os.lstat(path), state):
            raise FileNotFoundError(path)
        return descriptor
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
