"""Fetching of a store's blocks: through the node's cache, else from the object store, again until they are right.

Those that are needed now are fetched at once, those that are needed soon in the background. Byte ranges are read behind
a URI, in calls that are given up after a while; a store that does not answer is waited for.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.copies import Notify, write_to_stderr
from ditlab.data.stores.files import UPLOAD_AGAIN
from ditlab.errors import StorageOutage, UserError, first_line
from ditlab.storage.remote import RemoteFiles, with_timeouts

THREADS = 8
"""An object store answers one reader with some 50 to 100 MB/s."""
RESERVED_THREADS = 2
"""Threads that never read ahead, so that a block that is needed now does not wait for one."""
AHEAD_PAUSE = 1.0
"""Seconds without reading ahead after a failure: what is needed now finds out how long it lasts."""
AHEAD_POLL = 0.05
MEMORY_BYTES = 256 << 20
"""Most bytes of the hint's blocks that are kept in memory where the cache has no room: each is read many times."""
CLAIM_TIMEOUT = 60.0
"""Seconds after which a block that another process has claimed is fetched all the same."""
CLAIM_POLL = 0.01

STORAGE_WAIT = 300.0
"""Seconds for which a store that does not answer is asked again: `DITLAB_STORAGE_WAIT`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds between two attempts: each pause is twice the one before, and drawn from its upper half."""
NOTICE = 5.0
"""Seconds of failure after which people read of it."""
SILENCE = 10.0
"""Seconds without a byte after which a request to S3 is given up."""
REQUEST_TIMEOUT, SLOWEST = 30.0, 100_000
"""A request may take so many seconds, and one more for each `SLOWEST` bytes."""
RENEWAL_INTERVAL = 60.0
"""Least seconds between two openings of the file system."""
OPEN_FILES = 256
"""Files that stay open: opening one asks an object store for its size, which costs as much as a small range."""
MORE_BYTES = 4096
SHORT_ANSWERS = 3
"""Answers that are too short after which the file's size is asked for."""

Result = TypeVar("Result")


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
    """Function that raises an error for content that is not the block's."""

    @property
    def path(self) -> str:
        """The file below the store's URI."""
        return f"{self.folder}/{self.file}" if self.folder else self.file

    def is_right(self, content: bytes | pa.Buffer) -> bool:
        """Return True if content is the block's."""
        try:
            self.verify(memoryview(content).cast("B"))
        except Exception:  # whatever a parser makes of bytes that are none of its own
            return False
        return True


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


def call_within(call: Callable[[], Result], timeout: float) -> Result:
    """Return the result of `call()`, or raise its error; TimeoutError after `timeout` seconds.

    It runs in a thread that is left to itself then, and does not keep the process from its end.
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # raised where the result is asked for
            answer.set_exception(error)

    threading.Thread(target=run, name="ditlab-request", daemon=True).start()
    try:
        return answer.result(timeout)
    except TimeoutError:
        if answer.done():  # the call's own
            raise
        raise TimeoutError(f"no answer within {timeout:.0f} s") from None


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

    def read(self, path: str, first: int, length: int, parts: int = 1) -> bytes:
        """Read `length` bytes of a file from `first` on, in `parts` requests; fewer where it ends before."""
        if parts > 1 and length >= parts:
            half = length // 2
            return self.read(path, first, half, parts - 1) + self.read(path, first + half, length - half)
        full = f"{self.files.path}/{path}"
        if (inner := self._fsspec()) is not None:  # fsspec's open files read ahead, and share one position
            found: bytes = inner.cat_file(full, start=first, end=first + length)
            return found
        file = self._opened(full)
        if (size := file.size()) < first + length:
            self.forget(path)  # its size may have been told wrongly
            if size <= first:
                return b""
        content: bytes = file.read_at(length, first)
        return content

    def forget(self, path: str) -> None:
        """Close a file: its size may have been told wrongly."""
        with self._lock:
            self._open.pop(f"{self.files.path}/{path}", None)

    def size_of(self, path: str) -> int:
        """Size of a file, as the store says it now."""
        info = self._filesystem.get_file_info(f"{self.files.path}/{path}")
        return -1 if info.size is None else int(info.size)

    def renew(self) -> None:
        """Open the file system again, with the credentials that the environment holds now; at most once a minute."""
        with self._lock:
            if time.monotonic() - self._renewed < RENEWAL_INTERVAL:
                return
            self._renewed = time.monotonic()
        with suppress(Exception):  # each of fsspec's libraries has its own
            if (inner := self._fsspec()) is not None:
                inner.clear_instance_cache()
        fresh = with_timeouts(RemoteFiles.open(self.files.knob, self.files.location).filesystem, SILENCE)
        with self._lock:
            self._former.append(self._filesystem)
            self._filesystem = fresh
            self._open.clear()

    def _fsspec(self) -> Any:
        """Return fsspec's file system; None for one of pyarrow's."""
        return getattr(getattr(self._filesystem, "handler", None), "fs", None)

    def _opened(self, full: str) -> Any:
        with self._lock:
            filesystem = self._filesystem
            if (file := self._open.get(full)) is not None:
                self._open.move_to_end(full)
                return file
        file = filesystem.open_input_file(full)
        with self._lock:
            if filesystem is self._filesystem:
                self._open[full] = file
                while len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)  # closed once nobody reads it
        return file


@dataclass
class FailedAttempts:
    """Attempts to fetch one block that failed."""

    num: int = 0
    reason: str = ""
    """Reason of the latest."""
    content: bytes | None = None
    """Its altered content."""
    since: float = 0.0
    """Time of the first."""

    @property
    def seconds(self) -> float:
        """Seconds since the first failure."""
        return time.monotonic() - self.since

    def note(self, reason: str, content: bytes | None = None) -> None:
        """Note a failure."""
        self.since = self.since or time.monotonic()
        self.num, self.reason, self.content = self.num + 1, reason, content


class BlockLoader:
    """Loader of blocks for several threads: from the cache, else from the store, verified."""

    def __init__(self, files: RemoteFiles, cache: BlockCache, wait: float | None, notify: Notify) -> None:
        """Load below `files`; a store that does not answer is asked again for `wait` seconds."""
        self.cache, self._reader, self._notify = cache, RangeReader(files), notify
        self._wait = storage_wait() if wait is None else wait
        self._place = f"{files.knob}={files.location}"
        self._lock, self._noticed = threading.Lock(), False
        self.closed = threading.Event()
        """Set once every load that waits is to end."""

    def load(self, request: BlockRequest, is_wanted: Callable[[], bool]) -> pa.Buffer | None:
        """Return a block that has been verified; None where it fails and `is_wanted` says that nobody waits for it.

        Raises UserError for a block that the store holds altered, StorageOutage where the store does not answer.
        """
        waited_since = time.monotonic()
        # A process that claimed it and is stopped is waited for, but not for ever.
        while time.monotonic() - waited_since < CLAIM_TIMEOUT:
            try:
                if (found := self._cached(request)) is not None:
                    return found
                with self.cache.claim(request.key) as claim:
                    if claim is not None:
                        if (found := self._cached(request)) is not None:
                            return found  # another process has put it there meanwhile
                        content = self._fetched(request, is_wanted)
                        return None if content is None else self.cache.keep(request.key, claim, content)
            except OSError as error:
                self.cache.problem = error
                break
            if self.closed.wait(CLAIM_POLL) or not is_wanted():
                return None
        content = self._fetched(request, is_wanted)
        return None if content is None else pa.py_buffer(content)

    def _cached(self, request: BlockRequest) -> pa.Buffer | None:
        found = self.cache.get(request.key)
        if found is not None and not (found.size == request.length and request.is_right(found)):
            self.cache.discard(request.key)
            return None
        return found

    def _fetched(self, request: BlockRequest, is_wanted: Callable[[], bool]) -> bytes | None:
        """Fetch a block until it is right, for as long as it is wanted. Raises as `load` does."""
        failed = FailedAttempts()
        while not self.closed.is_set():
            content = self._attempt(request, failed)
            if content is not None and request.is_right(content):
                with self._lock:
                    was_noticed, self._noticed = self._noticed, False
                if was_noticed:
                    self._notify(f"{self._place} answers again.")
                return content
            if content is not None:
                if content == failed.content:  # the attempts asked for other ranges: a fault on the way falls elsewhere
                    raise UserError(
                        f"{self._place}: {request.path} was altered: its bytes from {request.offset:,} on do not have "
                        f"the manifest's hash; {UPLOAD_AGAIN}."
                    )
                failed.note("content without the manifest's hash", content)
            if not is_wanted():
                return None
            self._pause(request, failed)
        return None

    def _attempt(self, request: BlockRequest, failed: FailedAttempts) -> bytes | None:
        """Return the bytes of a block, not verified; None where the store does not give them now."""
        is_cut = failed.num % 2 > 0  # every second attempt asks otherwise, so that faults of answers fall elsewhere
        more = min(request.offset, MORE_BYTES) if is_cut else 0
        read = partial(self._reader.read, request.path, request.offset - more, request.length + more, 1 + is_cut)
        try:
            content = call_within(read, REQUEST_TIMEOUT + request.length / SLOWEST)[more:]
            if len(content) == request.length:
                return content
            self._reader.forget(request.path)
            failed.note(f"an answer of {len(content):,} bytes for {request.length:,}")
            if failed.num < SHORT_ANSWERS:
                return None
            size = call_within(partial(self._reader.size_of, request.path), REQUEST_TIMEOUT)
        except FileNotFoundError:
            raise UserError(f"{self._place}: {request.path} is missing; {UPLOAD_AGAIN}.") from None
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            failed.note(first_line(error))
            return None
        if 0 <= size < request.offset + request.length:
            raise UserError(
                f"{self._place}: {request.path} was altered: it has {size:,} bytes, and its blocks by the manifest "
                f"{request.offset + request.length:,} or more; {UPLOAD_AGAIN}."
            )
        return None

    def _pause(self, request: BlockRequest, failed: FailedAttempts) -> None:
        """Wait before the next attempt. Raises StorageOutage after the last one."""
        if failed.seconds > self._wait:
            raise StorageOutage(
                f"{self._place} has not given {request.path} for {failed.seconds:.0f} s ({failed.reason}); check the "
                "network and the credentials in the environment, and resume the run."
            )
        if failed.seconds > NOTICE:
            with self._lock:
                is_new, self._noticed = not self._noticed, True
            if is_new:
                self._notify(f"{self._place} does not answer ({failed.reason}); trying again for {self._wait:.0f} s.")
        try:
            call_within(self._reader.renew, REQUEST_TIMEOUT)
        except Exception as error:  # as above
            failed.reason = first_line(error)
        longest = min(FIRST_PAUSE * 2 ** min(failed.num - 1, 20), LONGEST_PAUSE, max(FIRST_PAUSE, self._wait / 5))
        self.closed.wait(longest * random.uniform(0.5, 1.0))


@dataclass(eq=False)
class LoadJob:
    """A block that is loaded, or waits for it."""

    request: BlockRequest
    is_needed: bool = False
    is_ahead: bool = False
    answer: Future[pa.Buffer] = field(default_factory=Future)


class BlockFetcher:
    """Threads that fetch verified blocks through a cache: those that are needed, and those of a hint.

    Within a process a block is fetched once, however many threads ask for it; processes that share the cache agree by
    claims. Blocks of the newest hint stay mapped, and are verified once. Its threads end with `close`.
    """

    def __init__(
        self,
        files: RemoteFiles,
        cache: BlockCache,
        *,
        wait: float | None = None,
        notify: Notify = write_to_stderr,
    ) -> None:
        """Fetch below `files`.

        Args:
            files: where the store lies.
            cache: the node's cache, which is closed with the fetcher.
            wait: seconds for which a store that does not answer is asked again; None: `DITLAB_STORAGE_WAIT`.
            notify: shows a message to people.
        """
        self.cache, self._loader = cache, BlockLoader(files, cache, wait, notify)
        self._changed = threading.Condition()
        self._jobs: dict[str, LoadJob] = {}
        """Blocks that are being loaded, or wait for it because they are needed now."""
        self._needed: deque[LoadJob] = deque()
        self._hint: set[str] = set()
        """Keys of the newest hint's blocks."""
        self._expected: deque[BlockRequest] = deque()
        """Blocks of the hint that were not looked at yet."""
        self._kept: dict[str, pa.Buffer] = {}
        """Blocks of the hint that are there: mapped, so that no process evicts them, and verified."""
        self._held: WeakValueDictionary[str, pa.Buffer] = WeakValueDictionary()
        """Verified blocks that someone in this process still holds."""
        self._bytes_mapped, self._bytes_in_memory = 0, 0
        """Bytes of the kept blocks by where they are."""
        self._num_ahead, self._bytes_ahead, self._ahead_from = 0, 0, 0.0
        for _ in range(THREADS):
            threading.Thread(target=self._work, name="ditlab-blocks", daemon=True).start()

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[str, pa.Buffer]:
        """Return the blocks by key, verified and read-only, once all are there.

        Raises UserError for a block that the store holds altered or not at all, StorageOutage where the store does not
        answer, RuntimeError once the fetcher is closed.
        """
        found, jobs = dict[str, pa.Buffer](), dict[str, LoadJob]()
        with self._changed:
            if self._loader.closed.is_set():
                raise RuntimeError("the fetcher is closed")
            for request in requests:
                key = request.key
                if (held := self._held.get(key)) is not None:
                    found[key] = held
                    self._keep(key, held)
                elif key not in jobs:  # it may be one that is loaded ahead at the moment
                    if key not in self._jobs:
                        self._jobs[key] = LoadJob(request)
                        self._needed.append(self._jobs[key])
                    jobs[key] = self._jobs[key]
                    jobs[key].is_needed = True
            self._changed.notify_all()
        return found | {key: job.answer.result() for key, job in jobs.items()}

    def expect(self, requests: Sequence[BlockRequest]) -> None:
        """Take a hint: blocks that are needed soon, in order, those in use now among them. It replaces the last one.

        They are fetched into the cache in the background, as many as fit beside what is in use. An empty hint releases
        what is kept.
        """
        with self._changed:
            self._hint = {request.key for request in requests}
            before, self._kept, self._bytes_mapped, self._bytes_in_memory = self._kept, {}, 0, 0
            for request in requests:
                # another process may share the cache now
                if request.key in before and (not self._kept or self._room_ahead() > request.length):
                    self._keep(request.key, before[request.key])
            self._expected = deque(request for request in requests if request.key not in self._kept)
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads once their requests end; callers that still wait get a RuntimeError. Waits for nothing."""
        with self._changed:
            self._loader.closed.set()
            self._hint.clear()
            self._kept.clear()
            self._expected.clear()
            for job in self._jobs.values():
                if not job.answer.done():
                    job.answer.set_exception(RuntimeError("the fetcher was closed"))
            self._changed.notify_all()
        self.cache.close()

    def _keep(self, key: str, block: pa.Buffer) -> None:
        """Keep a block of the hint; of those that the cache had no room for, a few in memory."""
        if key not in self._hint or key in self._kept:
            return
        if key in self.cache:
            self._bytes_mapped += block.size
        elif self._bytes_in_memory + block.size <= MEMORY_BYTES:
            self._bytes_in_memory += block.size
        else:
            return
        self._kept[key] = block

    def _work(self) -> None:
        while (job := self._next()) is not None:
            block, error = None, None
            try:
                block = self._loader.load(job.request, lambda job=job: job.is_needed)  # type: ignore[misc]
            except Exception as raised:  # raised where the block is asked for
                error = raised
            self._finish(job, block, error)
            del job, block, error  # they would hold the block until the next one

    def _next(self) -> LoadJob | None:
        """Wait for a block to load; None at the end."""
        with self._changed:
            while not self._loader.closed.is_set():
                if self._needed:
                    return self._needed.popleft()
                if (job := self._next_ahead()) is not None:
                    return job
                self._changed.wait(AHEAD_POLL if self._expected else None)
            return None

    def _next_ahead(self) -> LoadJob | None:
        if self._num_ahead >= THREADS - RESERVED_THREADS or time.monotonic() < self._ahead_from:
            return None
        while self._expected:
            request = self._expected[0]
            if (held := self._held.get(request.key)) is not None:
                self._keep(request.key, held)
            elif request.key not in self._jobs:
                if request.length > self._room_ahead():
                    return None
                job = self._jobs[request.key] = LoadJob(request, is_ahead=True)
                self._num_ahead, self._bytes_ahead = self._num_ahead + 1, self._bytes_ahead + request.length
                self._expected.popleft()
                return job
            self._expected.popleft()
        return None

    def _room_ahead(self) -> int:
        """Bytes of this process's share of the cache beside what it keeps, less a little for what comes now."""
        share = self.cache.share()
        return share - share // 16 - self._bytes_mapped - self._bytes_ahead

    def _finish(self, job: LoadJob, block: pa.Buffer | None, error: Exception | None) -> None:
        key = job.request.key
        with self._changed:
            if job.is_ahead:
                self._num_ahead, self._bytes_ahead = self._num_ahead - 1, self._bytes_ahead - job.request.length
                job.is_ahead = False
            is_closed = job.answer.done()
            if block is None and error is None and job.is_needed and not is_closed:
                self._needed.append(job)  # it failed while nobody needed it yet
            else:
                del self._jobs[key]
                if block is None:
                    self._ahead_from = time.monotonic() + AHEAD_PAUSE
                elif job.is_needed or key in self.cache:
                    self._held[key] = block
                    self._keep(key, block)
                else:  # no room: reading on would be in vain
                    self._expected.clear()
                if job.is_needed and not is_closed:
                    if error is not None:
                        job.answer.set_exception(error)
                    else:
                        job.answer.set_result(block)
            self._changed.notify_all()


class ReadAhead:
    """Announcements of several folders to one fetcher: the newest of each, in turn.

    The fetcher is closed once nobody holds this any more: its own threads hold it.
    """

    def __init__(self, fetcher: BlockFetcher):
        self.fetcher = fetcher
        self._newest: dict[str, Sequence[BlockRequest]] = {}
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, fetcher.close)
        """Function that closes the fetcher. Calling it twice is fine."""

    def expect(self, folder: str, requests: Sequence[BlockRequest]) -> None:
        """Announce the blocks of a folder that are needed soon, in their order, in place of its last announcement."""
        with self._lock:
            self._newest[folder] = requests
            in_turn = chain.from_iterable(zip_longest(*self._newest.values()))
            self.fetcher.expect([request for request in in_turn if request is not None])
