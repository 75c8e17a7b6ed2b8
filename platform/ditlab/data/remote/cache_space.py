"""Space of a block cache: reserved before it is written, made by eviction of what was used least recently.

The ledger says which blocks there are, how large, and when each was last used.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ditlab.data.remote.cache_files import KEY, CacheFolder, CacheUsers, open_locked
from ditlab.storage.files import folder_size
from ditlab.storage.plain_files import check_plain, read_plain

_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value);
CREATE TABLE blocks (key TEXT PRIMARY KEY, bytes INTEGER NOT NULL, used REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX by_use ON blocks (used);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER added AFTER INSERT ON blocks BEGIN UPDATE total SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER dropped AFTER DELETE ON blocks BEGIN UPDATE total SET bytes = bytes - OLD.bytes; END;
"""
_VERSION = 1
JOURNAL_BYTES = 256 * 1024
"""Room kept for SQLite's journal and the ledger's growth within one transaction."""
MOST_TOUCHES = 32
"""Uses noted in one transaction: each changes pages of the ledger, which its journal holds meanwhile."""


class CacheLedger:
    """SQLite file that is open in this process. Use it within the folder's lock only, and one thread at a time.

    Killed within a transaction, a process leaves a journal from which SQLite restores the file. A power cut can damage
    it, as nothing waits for the disk; after another start of the machine, and where it is damaged, foreign or gone, it
    is made anew from the files that are there.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the ledger, make it anew where need be, and commit what the body does. Raises OSError."""
        connection = self._opened()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                self.close()
                if not isinstance(error, sqlite3.OperationalError):
                    self._delete()  # damaged: the next transaction makes it anew
                raise OSError(None, f"the ledger cannot be used ({error})", str(self._folder.ledger)) from error
            raise

    def size(self) -> int:
        """Bytes of the ledger's files, and room for its journal."""
        return JOURNAL_BYTES + sum(folder_size(path) for path in self._files())

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _files(self) -> tuple[Path, ...]:
        return tuple(self._folder.ledger.with_name(f"ledger.sqlite{end}") for end in ("", "-journal"))

    def _opened(self) -> sqlite3.Connection:
        path = self._folder.ledger
        if self._connection is not None:
            try:
                state = path.lstat()
                if (state.st_dev, state.st_ino) == self._inode:
                    return self._connection
            except OSError:
                pass
            self.close()  # another process has made it anew
        for file in self._files():
            with suppress(FileNotFoundError):
                check_plain(file)  # SQLite would follow a link and wait for a pipe
        is_new = not path.exists()
        if not is_new:
            try:
                self._connect()
                if self._is_sound():
                    return self._connected()
            except sqlite3.DatabaseError as error:
                if "is locked" in str(error) or "full" in str(error):
                    self.close()
                    raise OSError(None, str(error), str(path)) from error
            self.close()
            self._delete()
        try:
            self._connect()
            self._make()
        except sqlite3.Error as error:
            self.close()
            with suppress(OSError):
                self._delete()
            raise OSError(None, f"the ledger cannot be made ({error})", str(path)) from error
        return self._connected()

    def _connected(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        path = self._folder.ledger
        connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        self._connection = connection
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = OFF")
        state = path.lstat()
        self._inode = (state.st_dev, state.st_ino)

    def _is_sound(self) -> bool:
        connection = self._connected()
        if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
            return False
        boot = connection.execute("SELECT value FROM about WHERE name = 'boot'").fetchone()
        return boot == (_boot(),) and connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)

    def _make(self) -> None:
        """Write the schema, and every block that the folder holds."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.strip().splitlines():
            connection.execute(statement)
        connection.execute("INSERT INTO about VALUES ('boot', ?)", (_boot(),))
        connection.executemany("INSERT INTO blocks VALUES (?, ?, ?)", self._found())
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _found(self) -> list[tuple[str, int, float]]:
        """Rows of the blocks that are there, and of those in the making."""
        sizes: dict[str, int] = {}
        used: dict[str, float] = {}
        for folder in (self._folder.path, self._folder.parts):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if KEY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        sizes[entry.name] = sizes.get(entry.name, 0) + state.st_size
                        used[entry.name] = min(state.st_mtime, time.time())
        return [(key, num_bytes, used[key]) for key, num_bytes in sizes.items()]

    def _delete(self) -> None:
        for path in self._files():
            path.unlink(missing_ok=True)


def total(connection: sqlite3.Connection) -> int:
    """Bytes of all blocks."""
    return int(connection.execute("SELECT bytes FROM total").fetchone()[0])


def insert(connection: sqlite3.Connection, key: str, num_bytes: int) -> None:
    """Enter a block, in the place of an older entry."""
    delete(connection, key)
    connection.execute("INSERT INTO blocks VALUES (?, ?, ?)", (key, num_bytes, time.time()))


def delete(connection: sqlite3.Connection, key: str) -> None:
    """Take a block off."""
    connection.execute("DELETE FROM blocks WHERE key = ?", (key,))


def by_use(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Keys and sizes of all blocks, the least recently used first. Blocks may be taken off meanwhile."""
    last = (-1.0, "")
    while rows := connection.execute(
        "SELECT used, key, bytes FROM blocks WHERE (used, key) > (?, ?) ORDER BY used, key LIMIT 64", last
    ).fetchall():
        for _, key, num_bytes in rows:
            yield key, num_bytes
        last = rows[-1][:2]


def _boot() -> str:
    """Identity of the machine's present start."""
    try:
        return read_plain(Path("/proc/sys/kernel/random/boot_id"), 100).decode(errors="replace").strip()
    except OSError:
        return "unknown"


class CacheSpace:
    """Bytes of a cache's files under the least limit of its users. Every method raises OSError."""

    def __init__(self, folder: CacheFolder, limit: int) -> None:
        """Enter this process as a user, delete what dead ones left, and evict what is over the limit."""
        self._folder, self.users = folder, CacheUsers(folder, limit)
        self._lock, self._ledger = threading.Lock(), CacheLedger(folder)
        self._used: dict[str, float] = {}
        with self._transaction() as connection:
            for path in self._folder.parts.iterdir():
                if KEY.fullmatch(path.name) and _delete_unlocked(path) and not self._folder.block(path.name).exists():
                    delete(connection, path.name)
            self._make_room(connection, 0)

    def size(self) -> int:
        """Bytes of the blocks and the ledger, with the room that is reserved."""
        with self._transaction() as connection:
            return total(connection) + self._ledger.size()

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
            delete(connection, key)
            if not self._make_room(connection, size):
                return False
            try:
                _allocate(descriptor, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._free(connection, size)  # others filled the disk: blocks of ours make place
                _allocate(descriptor, size)
            insert(connection, key, size)
            return True

    def forget(self, key: str) -> None:
        """Take a block off that was reserved and not written."""
        with self._transaction() as connection:
            delete(connection, key)

    def discard(self, key: str) -> None:
        """Delete a block, also while it is in use."""
        with self._transaction() as connection:
            path = self._folder.block(key)
            make_way(path)
            path.unlink(missing_ok=True)
            delete(connection, key)

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
            connection.executemany("UPDATE blocks SET used = ? WHERE key = ?", [(at, key) for key, at in used.items()])
            yield connection

    def _make_room(self, connection: sqlite3.Connection, size: int) -> bool:
        """Evict blocks until `size` more bytes fit; False where those in use leave no room."""
        excess = total(connection) + self._ledger.size() + size - self.users.count().limit
        return self._free(connection, excess) >= excess

    def _free(self, connection: sqlite3.Connection, wanted: int) -> int:
        """Evict the least recently used blocks until `wanted` bytes are free; returns how many are."""
        freed = 0
        if wanted > 0:
            for key, num_bytes in by_use(connection):
                # The unfinished file first: a process renames it to the block, never the other way.
                if _delete_unlocked(self._folder.part(key)) and _delete_unlocked(self._folder.block(key)):
                    delete(connection, key)
                    freed += num_bytes
                    if freed >= wanted:
                        break
        return freed


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
