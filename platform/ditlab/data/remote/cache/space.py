"""Space of a block cache: reserved before it is written, made by eviction of what was used least recently."""

import errno
import fcntl
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ditlab.data.remote.cache import ledger
from ditlab.data.remote.cache.folder import KEY, CacheFolder
from ditlab.data.remote.cache.ledger import CacheLedger
from ditlab.data.remote.cache.mapped_file import open_locked
from ditlab.data.remote.cache.users import CacheUsers

MOST_TOUCHES = 32
"""Uses noted in one transaction: each changes pages of the ledger, which its journal holds meanwhile."""


class CacheSpace:
    """Bytes of a cache's files under the least limit of its users. Every method raises OSError."""

    def __init__(self, folder: CacheFolder, limit: int) -> None:
        """Enter this process as a user, delete what dead ones left, and evict what is over the limit."""
        self._folder, self.users = folder, CacheUsers(folder, limit)
        self._lock, self._ledger = threading.Lock(), CacheLedger(folder)
        self._used: dict[str, float] = {}
        with self._transaction() as connection:
            self._delete_dead_parts(connection)
            self._make_room(connection, 0)

    def size(self) -> int:
        """Bytes of the blocks and the ledger, with the room that is reserved."""
        with self._transaction() as connection:
            return ledger.total(connection) + self._ledger.size()

    def ledger_bytes(self) -> int:
        """Bytes of the ledger, and room for its journal."""
        return self._ledger.size()

    def reserve(self, key: str, descriptor: int, size: int) -> bool:
        """Enter a block in the ledger, in the place of an older one, and give its open, empty file `size` bytes.

        Returns False where the blocks in use leave no room.
        """
        with self._transaction() as connection:
            if not _delete_unlocked(self._folder.block(key)):
                return False
            ledger.delete(connection, key)
            if not self._make_room(connection, size):
                return False
            try:
                _allocate(descriptor, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._free(connection, size)  # others filled the disk: blocks of ours make place
                _allocate(descriptor, size)
            ledger.insert(connection, key, size)
            return True

    def forget(self, key: str) -> None:
        """Take a block off that was reserved and not written."""
        with self._transaction() as connection:
            ledger.delete(connection, key)

    def discard(self, key: str) -> None:
        """Delete a block, also while it is in use."""
        with self._transaction() as connection:
            path = self._folder.block(key)
            make_way(path)
            path.unlink(missing_ok=True)
            ledger.delete(connection, key)

    def note_use(self, key: str) -> None:
        """Note that a block is used now; written into the ledger some uses later."""
        with self._lock:
            self._used[key] = time.time()
            is_due = len(self._used) >= MOST_TOUCHES
        if is_due:
            with self._transaction():
                pass

    def close(self) -> None:
        """Take this process off the users. The latest uses are not noted: this may run within another transaction."""
        self.users.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the locks of this process and of the folder, and write the uses that were noted."""
        with self._lock, self._folder.locked(), self._ledger.transaction() as connection:
            used, self._used = self._used, {}
            ledger.touch(connection, used)
            yield connection

    def _make_room(self, connection: sqlite3.Connection, size: int) -> bool:
        """Evict blocks until `size` more bytes fit; False where those in use leave no room."""
        excess = ledger.total(connection) + self._ledger.size() + size - self.users.count().limit
        return self._free(connection, excess) >= excess

    def _free(self, connection: sqlite3.Connection, wanted: int) -> int:
        """Evict the least recently used blocks until `wanted` bytes are free; returns how many are."""
        freed = 0
        if wanted > 0:
            for key, num_bytes in ledger.by_use(connection):
                # The unfinished file first: a process renames it to the block, never the other way.
                if _delete_unlocked(self._folder.part(key)) and _delete_unlocked(self._folder.block(key)):
                    ledger.delete(connection, key)
                    freed += num_bytes
                    if freed >= wanted:
                        break
        return freed

    def _delete_dead_parts(self, connection: sqlite3.Connection) -> None:
        for path in self._folder.parts.iterdir():
            if KEY.fullmatch(path.name) and _delete_unlocked(path) and not self._folder.block(path.name).exists():
                ledger.delete(connection, path.name)


def make_way(path: Path) -> None:
    """Delete what stands in a block's way and is no plain file: a link, a pipe. A folder or device stays."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return
    if kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK):
        path.unlink()


def _delete_unlocked(path: Path) -> bool:
    """Delete a file; False while it is in use or in the making."""
    try:
        descriptor = open_locked(path, os.O_RDWR, fcntl.LOCK_EX)
    except OSError as error:  # gone, or no plain file, which is nothing of ours
        return not isinstance(error, PermissionError)
    if descriptor is None:
        return False
    try:
        path.unlink()
    finally:
        os.close(descriptor)
    return True


def _allocate(descriptor: int, size: int) -> None:
    """Give an empty file its space, so that a full disk shows now."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.ftruncate(descriptor, 0)
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)  # a file system that cannot
