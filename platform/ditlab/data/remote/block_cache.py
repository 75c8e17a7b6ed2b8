"""Cache of blocks on a node's disk: bounded, shared by its processes, usable after a kill at any moment.

A file named by the hash of its content is a block, whose modification time is that of its last use; `HASH.part` is one
in the making, locked by its process; `users/LIMIT-TOKEN` is locked by a process that uses the cache.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from ditlab.errors import UserError

PART = ".part"
"""End of the name of a block in the making."""
SUM_BYTES = 20
"""Bytes of the file that holds the sum."""
USERS_INTERVAL = 2.0
"""Seconds for which the number of processes that use the cache is taken as known."""
SPARE_SHARE = 1 / 32
"""Share of the limit that is freed at once, as each time takes a look at all files."""


class BlockCache:
    """Files of at most `limit_bytes`, unfinished ones included.

    Their sum, in the file `.lock`, counts a block before a byte of it is written and until it is deleted, so that the
    bound also holds while several processes write; the files themselves are counted when the sum reaches the limit. The
    block used longest ago goes first; one that a process has mapped is locked, and stays. Where processes have
    different limits, the least holds. The content is the caller's to verify. A disk that refuses costs the cache, and
    not the caller: `keep` then returns the content from memory, and `problem` says why.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Open or make the cache, and evict what is over the limit. Raises UserError for a folder that is unusable."""
        self.limit_bytes = limit_bytes
        self._folder = folder
        self.problem: OSError | None = None
        """Latest reason for which a block was not kept; None for none."""
        self._users = (1, limit_bytes)
        self._counted = 0.0
        try:
            (folder / "users").mkdir(parents=True, exist_ok=True)
            with self._locked() as lock:
                self._user = folder / "users" / f"{limit_bytes}-{secrets.token_hex(6)}"
                self._descriptor = _open(self._user)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                _write_sum(lock, self._evict(self._count_users()[1] - SUM_BYTES))
        except OSError as error:
            raise UserError(
                f"The cache of blocks in {folder} cannot be used ({error.strerror or error}); delete that folder, make "
                "room there, or point DITLAB_CACHE at another disk of this node."
            ) from None

    def share(self) -> int:
        """Bytes that this process may count on beside the others that use the cache."""
        if time.monotonic() - self._counted > USERS_INTERVAL:
            with suppress(OSError), self._locked():
                self._count_users()
        num, least = self._users
        return least // num

    def __contains__(self, key: str) -> bool:
        return (self._folder / key).is_file()

    def get(self, key: str) -> pa.Buffer | None:
        """Map a block; None where it is missing. It stays in the cache while the buffer or a view of it lives."""
        path = self._folder / key
        try:
            with pa.memory_map(str(path)) as file:
                # The lock lasts as long as the map, though the descriptor is closed here.
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.utime(path)
                return file.read_buffer() if _is_at(path, file.fileno()) and file.size() else None
        except OSError:
            return None

    @contextmanager
    def claim(self, key: str) -> Iterator[int | None]:
        """Claim the making of a block until the body, or the process, ends; None while another makes it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{key}{PART}"
        descriptor = _open(part)
        try:
            is_ours = _try_lock(descriptor) and _is_at(part, descriptor)
            yield descriptor if is_ours else None
            if is_ours and _is_at(part, descriptor):
                part.unlink()
        finally:
            os.close(descriptor)

    def keep(self, key: str, claim: int, content: bytes | memoryview | pa.Buffer) -> pa.Buffer:
        """Keep the content of a claimed block; return it mapped, or from memory where there is no room."""
        view = memoryview(content).cast("B")
        try:
            if self._reserve(claim, view.nbytes):
                done = 0
                while done < view.nbytes:
                    done += os.pwrite(claim, view[done:], done)
                # Locked, as a count of the files that runs beside a change of names misses one, and a lock that becomes
                # a shared one is open for a moment.
                with self._locked():
                    fcntl.flock(claim, fcntl.LOCK_SH)  # before it has its name, at which others map it
                    (self._folder / f"{key}{PART}").rename(self._folder / key)
                if (mapped := self.get(key)) is not None:
                    return mapped
        except OSError as error:
            self.problem = error
        return pa.py_buffer(content)

    def discard(self, key: str) -> None:
        """Delete a block whose content was found damaged, also while it is in use."""
        with suppress(OSError):
            (self._folder / key).unlink()

    def close(self) -> None:
        """Take this process off the cache's users; what is mapped stays. Closing twice is fine."""
        if self._descriptor >= 0:
            self._user.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the cache's lock among threads and processes; the lock of a killed process ends with it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open(self._folder / ".lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _reserve(self, claim: int, size: int) -> bool:
        """Count a block, and give its empty file `size` bytes; False where the blocks in use leave no room."""
        with self._locked() as lock:
            text = os.pread(lock, SUM_BYTES, 0)
            limit = self._count_users()[1] - SUM_BYTES
            held = int(text) if text.isdigit() else self._evict(limit)
            if held + size > limit:
                held = self._evict(limit - size - int(limit * SPARE_SHARE))
            _write_sum(lock, held)
            if held + size > limit:
                return False
            _write_sum(lock, held + size)
            os.ftruncate(claim, 0)  # what a killed process left
            os.ftruncate(claim, size)
            return True

    def _evict(self, most: int) -> int:
        """Delete what killed processes left, and the oldest blocks beyond `most` bytes; return the rest's bytes."""
        held = 0
        blocks = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # renamed or deleted meanwhile
                state = entry.stat()
                is_part = entry.name.endswith(PART)
                if entry.is_dir() or entry.name == ".lock":
                    continue
                if is_part and _delete_unlocked(Path(entry.path)):
                    continue
                held += state.st_size
                if not is_part:
                    blocks.append((state.st_mtime_ns, entry.path, state.st_size))
        for _, path, size in sorted(blocks):
            if held <= most:
                break
            if _delete_unlocked(Path(path)):
                held -= size
        return held

    def _count_users(self) -> tuple[int, int]:
        """Count the processes that use the cache, and find the least of their limits; delete the files of dead ones."""
        limits = []
        with suppress(FileNotFoundError):  # the folder was deleted in use
            for path in (self._folder / "users").iterdir():
                if not _delete_unlocked(path):
                    limits.append(int(path.name.partition("-")[0]))
        self._users = (max(1, len(limits)), min([self.limit_bytes, *limits]))
        self._counted = time.monotonic()
        return self._users


def _open(path: Path, flags: int = os.O_CREAT) -> int:
    return os.open(path, flags | os.O_RDWR, 0o644)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """Return True if an open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _delete_unlocked(path: Path) -> bool:
    """Delete a file that no process has locked; False where one has."""
    try:
        descriptor = _open(path, 0)
    except FileNotFoundError:
        return True
    try:
        if is_free := _try_lock(descriptor):
            path.unlink(missing_ok=True)
        return is_free
    finally:
        os.close(descriptor)


def _write_sum(lock: int, held: int) -> None:
    os.pwrite(lock, b"%0*d" % (SUM_BYTES, held), 0)
