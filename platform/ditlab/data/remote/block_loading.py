"""Loading of a block: from the cache, else from the object store, verified, again until it is right.

Byte ranges are read behind a URI, in calls that are given up after a while; a store that does not answer is waited for.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.copies import write_to_stderr
from ditlab.data.stores.files import UPLOAD_AGAIN
from ditlab.errors import StorageOutage, UserError, first_line
from ditlab.storage.remote import RemoteFiles, with_timeouts

STORAGE_WAIT = 300.0
"""Seconds for which a store that does not answer is asked again: `DITLAB_STORAGE_WAIT`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds between two attempts: each pause is twice the one before, and drawn from its upper half."""
Result = TypeVar("Result")
OPEN_FILES = 256
"""Files that stay open: opening one asks an object store for its size, which costs as much as a small range."""
RENEWAL_INTERVAL = 60.0
"""Least seconds between two openings of the file system."""
SILENCE = 10.0
"""Seconds without a byte after which a request to S3 is given up."""
NOTICE = 5.0
"""Seconds of failure after which people read of it."""
REQUEST_TIMEOUT, SLOWEST = 30.0, 100_000
"""A request may take so many seconds, and one more for each `SLOWEST` bytes."""
CLAIM_TIMEOUT = 60.0
"""Seconds after which a block that another process has claimed is fetched all the same."""
CLAIM_POLL = 0.01
MORE_BYTES = 4096
SHORT_ANSWERS = 3
"""Answers that are too short after which the file's size is asked for."""


@dataclass(frozen=True)
class BlockRequest:
    """A block of a store's file: where it lies, what it is named in the cache, how it is verified."""

    key: str
    """Hash over its content, as hexadecimal digits: its name in the cache."""
    folder: str
    """Folder of the file below the store's URI; "" for the store's own."""
    file: str
    offset: int
    """Its first byte in the file."""
    length: int
    verify: Callable[[memoryview], object]
    """Function that raises ValueError for content that is not the block's."""

    @property
    def path(self) -> str:
        """The file below the store's URI."""
        return f"{self.folder}/{self.file}" if self.folder else self.file


class RetryState:
    """Failed attempts to fetch one block."""

    def __init__(self, wait: float) -> None:
        """Begin without a failure; attempts are to end `wait` seconds after the first one."""
        self.num, self.reason, self._since, self._wait = 0, "", 0.0, wait
        self.content: bytes | None = None
        """Altered content of the latest attempt."""

    @property
    def seconds(self) -> float:
        """Seconds since the first failure."""
        return time.monotonic() - self._since

    @property
    def is_over(self) -> bool:
        """True once there is to be no other attempt."""
        return self.num > 0 and self.seconds > self._wait

    def note(self, reason: str, content: bytes | None = None) -> None:
        """Note a failure."""
        self._since = self._since or time.monotonic()
        self.num, self.reason, self.content = self.num + 1, reason, content

    def pause(self) -> float:
        """Seconds before the next attempt."""
        longest = min(FIRST_PAUSE * 2 ** min(self.num - 1, 20), LONGEST_PAUSE, max(FIRST_PAUSE, self._wait / 5))
        return longest * random.uniform(0.5, 1.0)


def storage_wait() -> float:
    """Seconds for which a store that does not answer is asked again. Raises UserError for a text that is no number."""
    text = os.environ.get("DITLAB_STORAGE_WAIT", "")
    try:
        found = float(text or STORAGE_WAIT)
        if not 0 <= found < float("inf"):
            raise ValueError
    except ValueError:
        raise UserError(f"DITLAB_STORAGE_WAIT={text} is no number of seconds; write 300, or 0.") from None
    return found


class TimedCalls:
    """Threads that run calls. One whose call lasts too long is left to itself, and another takes its place."""

    def __init__(self) -> None:
        self._idle: list[_Runner] = []
        self._lock = threading.Lock()

    def run(self, call: Callable[[], Result], timeout: float) -> Result:
        """Return the result of `call()`, or raise its error; TimeoutError after `timeout` seconds."""
        with self._lock:
            runner = self._idle.pop() if self._idle else _Runner()
        pending: _Pending[Result] = _Pending(call)
        runner.calls.put(pending)
        if not pending.done.wait(timeout):
            runner.calls.put(None)  # it ends once the call does
            raise TimeoutError(f"no answer within {timeout:.0f} s")
        with self._lock:
            self._idle.append(runner)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def close(self) -> None:
        """End the threads that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for runner in idle:
            runner.calls.put(None)


class _Pending(Generic[Result]):
    """A call that is running, and its end."""

    result: Result

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call, self.done = call, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # raised where its result is asked for
            self.error = error
        finally:
            self.done.set()


class _Runner:
    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Pending[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ditlab-request", daemon=True).start()

    def _run(self) -> None:
        while (pending := self.calls.get()) is not None:
            pending.run()
            del pending  # holds the content


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


class BlockLoader:
    """Loader of blocks for several threads. Counts what it fetches."""

    def __init__(
        self,
        reader: RangeReader,
        cache: BlockCache,
        wait: float | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """Load through `cache`; a store that does not answer is asked again for `wait` seconds."""
        self.reader, self.cache = reader, cache
        self._wait = storage_wait() if wait is None else wait
        self._notify = notify or write_to_stderr
        self._calls, self._lock = TimedCalls(), threading.Lock()
        self._noticed = False
        self.closed = threading.Event()
        self.bytes_fetched = 0
        """Bytes that came from the store, with those that were not right."""

    def load(self, request: BlockRequest, is_wanted: Callable[[], bool]) -> pa.Buffer | None:
        """Return a block that has been verified; None where it fails and `is_wanted` says that nobody waits for it.

        Raises UserError for a block that the store holds altered, StorageOutage where the store does not answer.
        """
        waited_since = time.monotonic()
        while True:
            if (found := self._cached(request)) is not None:
                return found
            try:
                claim = self.cache.claim(request.key)
            except OSError as error:
                self.cache.problem = error
                return self._fetched(request, is_wanted)
            if claim is not None:
                with claim:
                    if (found := self._cached(request)) is not None:
                        return found  # another process has put it there meanwhile
                    content = self._fetched(request, is_wanted)
                    return None if content is None else self.cache.keep(claim, content)
            if time.monotonic() - waited_since > CLAIM_TIMEOUT:
                return self._fetched(request, is_wanted)  # its process is stopped
            if self.closed.wait(CLAIM_POLL) or not is_wanted():
                return None

    def close(self) -> None:
        """End every load that waits."""
        self.closed.set()
        self._calls.close()
        self.reader.close()

    def _cached(self, request: BlockRequest) -> pa.Buffer | None:
        found = self.cache.get(request.key)
        if found is None:
            return None
        if found.size == request.length and _is_right(request, memoryview(found).cast("B")):
            return found
        self.cache.discard(request.key)
        return None

    def _fetched(self, request: BlockRequest, is_wanted: Callable[[], bool]) -> pa.Buffer | None:
        retries = RetryState(self._wait)
        while not self.closed.is_set():
            content = self._attempt(request, retries)
            if content is not None:
                if _is_right(request, memoryview(content)):
                    if self._noticed:
                        with self._lock:
                            was_noticed, self._noticed = self._noticed, False
                        if was_noticed:
                            self._notify(f"{self._place} answers again.")
                    return pa.py_buffer(content)
                if (
                    content == retries.content
                ):  # the attempts asked for other ranges: a fault on the way falls elsewhere
                    raise UserError(
                        f"{self._place}: {request.path} was altered: its bytes from {request.offset:,} on do not have "
                        f"the manifest's hash; {UPLOAD_AGAIN}."
                    )
                retries.note("content without the manifest's hash", content)
            if not is_wanted():
                return None
            self._prepare_again(request, retries)
        return None

    def _attempt(self, request: BlockRequest, retries: RetryState) -> bytes | None:
        """Return the bytes of a block, not verified; None where the store does not give them now."""
        timeout = REQUEST_TIMEOUT + request.length / SLOWEST
        is_cut = retries.num % 2 > 0  # every second attempt asks otherwise, so that faults of answers fall elsewhere
        more = min(request.offset, MORE_BYTES) if is_cut else 0
        read = partial(self.reader.read, request.path, request.offset - more, request.length + more, 1 + is_cut)
        try:
            content: bytes = self._calls.run(read, timeout)[more:]
        except FileNotFoundError:
            raise UserError(f"{self._place}: {request.path} is missing; {UPLOAD_AGAIN}.") from None
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            retries.note(first_line(error))
            return None
        with self._lock:
            self.bytes_fetched += len(content)
        if len(content) == request.length:
            return content
        self.reader.forget(request.path)
        retries.note(f"an answer of {len(content):,} bytes for {request.length:,}")
        if retries.num >= SHORT_ANSWERS:
            self._check_size(request, retries)
        return None

    def _check_size(self, request: BlockRequest, retries: RetryState) -> None:
        """Raise UserError for a file that ends before the block does."""
        try:
            size = self._calls.run(partial(self.reader.size_of, request.path), REQUEST_TIMEOUT)
        except Exception as error:  # as above
            retries.reason = first_line(error)
            return
        if 0 <= size < request.offset + request.length:
            raise UserError(
                f"{self._place}: {request.path} was altered: it has {size:,} bytes, and its blocks by the manifest "
                f"{request.offset + request.length:,} or more; {UPLOAD_AGAIN}."
            )

    def _prepare_again(self, request: BlockRequest, retries: RetryState) -> None:
        """Wait before the next attempt. Raises StorageOutage after the last one."""
        if retries.is_over:
            raise StorageOutage(
                f"{self._place} has not given {request.path} for {retries.seconds:.0f} s ({retries.reason}); check the "
                "network and the credentials in the environment, and resume the run."
            )
        if retries.seconds > NOTICE:
            with self._lock:
                is_new, self._noticed = not self._noticed, True
            if is_new:
                self._notify(f"{self._place} does not answer ({retries.reason}); trying again for {self._wait:.0f} s.")
        try:
            self._calls.run(self.reader.renew, REQUEST_TIMEOUT)
        except Exception as error:  # as above
            retries.reason = first_line(error)
        self.closed.wait(retries.pause())

    @property
    def _place(self) -> str:
        return f"{self.reader.files.knob}={self.reader.files.location}"


def _is_right(request: BlockRequest, content: memoryview) -> bool:
    try:
        request.verify(content)
    except Exception:  # whatever a parser makes of bytes that are none of its own
        return False
    return True
