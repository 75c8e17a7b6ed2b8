"""Reading of byte ranges of files behind a URI."""

import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from ditlab.storage.remote import RemoteFiles, with_timeouts

OPEN_FILES = 256
"""Files that stay open: opening one asks an object store for its size, which costs as much as a small range."""
RENEWAL_INTERVAL = 60.0
"""Least seconds between two openings of the file system."""
SILENCE = 10.0
"""Seconds without a byte after which a request to S3 is given up."""


class RangeReader:
    """Reader of ranges of files, by several threads at a time. Every method raises its library's errors."""

    def __init__(self, files: RemoteFiles) -> None:
        """Read below `files`."""
        self.files = files
        self._filesystem = with_timeouts(files.filesystem, SILENCE)
        self._lock, self._open = threading.Lock(), OrderedDict[str, Any]()
        self._renewed = time.monotonic()
        self._former: list[Any] = []
        """File systems that were renewed: the end of one waits for its requests, and all of Python with it."""
        self.requests_made = 0
        """Requests for a range or a file's size."""

    def read(self, path: str, first: int, length: int, parts: int = 1) -> bytes:
        """Read `length` bytes of a file from `first` on, in `parts` requests; fewer where it ends before."""
        if parts > 1 and length >= parts:
            half = length // 2
            return self.read(path, first, half, parts - 1) + self.read(path, first + half, length - half)
        full = f"{self.files.path}/{path}"
        inner = getattr(getattr(self._filesystem, "handler", None), "fs", None)
        if inner is not None:  # fsspec's open files read ahead, and share one position
            self._count()
            found: bytes = inner.cat_file(full, start=first, end=first + length)
            return found
        file = self._opened(full)
        if (size := file.size()) < first + length:
            self.forget(path)  # its size may have been told wrongly
            if size <= first:
                return b""
        self._count()
        content: bytes = file.read_at(length, first)
        return content

    def forget(self, path: str) -> None:
        """Close a file: its size may have been told wrongly."""
        with self._lock:
            self._open.pop(f"{self.files.path}/{path}", None)

    def size_of(self, path: str) -> int:
        """Size of a file, as the store says it now."""
        self._count()
        info = self._filesystem.get_file_info(f"{self.files.path}/{path}")
        return -1 if info.size is None else int(info.size)

    def renew(self) -> bool:
        """Open the file system anew, with the credentials that the environment holds now; at most once a minute."""
        with self._lock:
            if time.monotonic() - self._renewed < RENEWAL_INTERVAL:
                return False
            self._renewed = time.monotonic()
        inner = getattr(getattr(self._filesystem, "handler", None), "fs", None)
        with suppress(Exception):  # each of fsspec's libraries has its own
            inner and inner.clear_instance_cache()
        fresh = with_timeouts(RemoteFiles.open(self.files.knob, self.files.location).filesystem, SILENCE)
        with self._lock:
            self._former.append(self._filesystem)
            self._filesystem = fresh
            self._open.clear()
        return True

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            self._open.clear()

    def _count(self) -> None:
        with self._lock:
            self.requests_made += 1

    def _opened(self, full: str) -> Any:
        with self._lock:
            file = self._open.get(full)
            if file is not None:
                self._open.move_to_end(full)
                return file
            filesystem = self._filesystem
        self._count()
        file = filesystem.open_input_file(full)
        with self._lock:
            if filesystem is self._filesystem:
                self._open[full] = file
                while len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)  # closed once nobody reads it
        return file
