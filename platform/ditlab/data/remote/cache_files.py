"""Files of a block cache: the folder they lie in, their memory maps, and the processes that use them.

Nobody may delete a mapped file while it is read.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
KEY = re.compile(r"[0-9a-f]{16,128}")
LOCK_TIMEOUT = 20.0
"""Seconds after which a lock is given up whose holder is stopped; a holder needs milliseconds."""
USERS_INTERVAL = 2.0
"""Seconds after which the processes that use a cache are counted again, where their number need not be exact."""
ATTEMPTS = 100


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


@dataclass(frozen=True)
class CacheFolder:
    """Paths of a cache: `KEY` is a block, `parts/KEY` one in the making, `users/LIMIT-TOKEN` a process."""

    path: Path

    @property
    def ledger(self) -> Path:
        """SQLite's file: key, size and last use of each block."""
        return self.path / "ledger.sqlite"

    @property
    def parts(self) -> Path:
        """Blocks in the making; each is locked by its process."""
        return self.path / "parts"

    @property
    def users(self) -> Path:
        """A locked file for each process, named by its limit."""
        return self.path / "users"

    def block(self, key: str) -> Path:
        """File of a block. Raises ValueError for a key that is no hash."""
        return self.path / self._checked(key)

    def part(self, key: str) -> Path:
        """File of a block in the making."""
        return self.parts / self._checked(key)

    def make(self) -> None:
        """Make the folders. Raises OSError, also where one of the inner two is a link."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.parts, self.users):
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise OSError(None, "is a link, no folder", str(folder))

    @contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
        """Hold the cache's lock among processes; the lock of a killed process ends with it. Raises TimeoutError."""
        path, deadline, pause = self.path / ".lock", time.monotonic() + timeout, 2e-4
        while True:
            try:
                descriptor = open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
            except FileNotFoundError:  # deleted meanwhile
                self.make()
                descriptor = None
            if descriptor is not None:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is held by another process for more than {timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        try:
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _checked(key: str) -> str:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of a block")
        return key


@dataclass(frozen=True)
class UserCount:
    """Processes that use a cache."""

    num: int
    """Their number; a process with two open caches counts twice."""
    limit: int
    """The least of their limits in bytes."""


class CacheUsers:
    """Processes that use a cache now; each has a locked file of its own."""

    def __init__(self, folder: CacheFolder, limit: int) -> None:
        self._folder, self._own, self._lock = folder, limit, threading.Lock()
        self._path, self._descriptor = folder.users / f"{limit}-{secrets.token_hex(6)}", -1
        self._counted, self._latest = -USERS_INTERVAL, UserCount(1, limit)
        self._enter()

    def recent(self) -> UserCount:
        """Users as they were a few seconds ago."""
        return self.count() if time.monotonic() - self._counted > USERS_INTERVAL else self._latest

    def count(self) -> UserCount:
        """Users now."""
        with self._lock:
            limits = [self._own]
            with suppress(OSError):
                names = [path.name for path in self._folder.users.iterdir()]
                if self._descriptor >= 0 and self._path.name not in names:  # deleted by hand
                    os.close(self._descriptor)
                    self._descriptor = -1
                    self._enter()
                limits += [limit for name in names if (limit := self._limit_of(name)) is not None]
            self._latest, self._counted = UserCount(len(limits), min(limits)), time.monotonic()
            return self._latest

    def close(self) -> None:
        """Take this process off. Closing twice is fine."""
        with self._lock:
            if self._descriptor >= 0:
                with suppress(OSError):
                    self._path.unlink()
                os.close(self._descriptor)
                self._descriptor = -1

    def _enter(self) -> None:
        for attempt in range(ATTEMPTS):  # another process may take the file, not yet locked, for a dead one's
            try:
                descriptor = open_locked(self._path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
            except FileNotFoundError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            if descriptor is not None:
                self._descriptor = descriptor
                return

    def _limit_of(self, name: str) -> int | None:
        """Limit of another process that lives; the file of a dead one is deleted."""
        limit = name.partition("-")[0]
        if name == self._path.name or not limit.isdecimal():
            return None
        path = self._folder.users / name
        try:
            descriptor = open_locked(path, os.O_RDONLY, fcntl.LOCK_EX)
        except OSError:
            return None
        if descriptor is None:
            return int(limit)
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)
        return None
