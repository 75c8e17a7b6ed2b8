"""Folder of a block cache: where its files lie, and the lock that its processes take in turn."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ditlab.data.remote.cache.mapped_file import open_locked

KEY = re.compile(r"[0-9a-f]{16,128}")
LOCK_TIMEOUT = 20.0
"""Seconds after which a lock is given up whose holder is stopped; a holder needs milliseconds."""


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
