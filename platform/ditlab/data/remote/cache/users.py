"""Processes that use a block cache."""

import fcntl
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from ditlab.data.remote.cache.folder import CacheFolder
from ditlab.data.remote.cache.mapped_file import open_locked

USERS_INTERVAL = 2.0
"""Seconds after which the processes that use a cache are counted again, where their number need not be exact."""

ATTEMPTS = 100


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
