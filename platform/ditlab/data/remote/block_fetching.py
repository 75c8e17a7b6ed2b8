"""Fetching of a store's blocks: through the node's cache, else from the object store, again until they are right."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, zip_longest
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.copies import UPLOAD_AGAIN, Notify, write_to_stderr
from ditlab.errors import StorageOutage, UserError, first_line
from ditlab.storage.remote import RemoteFiles, with_timeouts

THREADS = 8
"""An object store answers one reader with some 50 to 100 MB/s."""
RESERVED_THREADS = 2
"""Threads that never read ahead, so that a block that is needed now does not wait for one."""
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


class BlockLoader:
    """Loader of blocks for several threads: from the cache, else by ranges from the store, until they are right."""

    def __init__(self, files: RemoteFiles, cache: BlockCache, wait: float | None, notify: Notify) -> None:
        """Load below `files`, asked for `wait` seconds; None: DITLAB_STORAGE_WAIT (UserError for no number)."""
        self.cache = cache
        self._files = files
        self._notify = notify
        text = os.environ.get("DITLAB_STORAGE_WAIT") or str(STORAGE_WAIT)
        try:
            self._wait = float(text) if wait is None else wait
        except ValueError:
            self._wait = -1.0
        if not 0 <= self._wait < float("inf"):
            raise UserError(f"DITLAB_STORAGE_WAIT={text} is no number of seconds; write 300, or 0.")
        self._place = f"{files.knob}={files.location}"
        self._lock = threading.Lock()
        self._renewed = time.monotonic()
        self._noticed = False
        self._former: list[Any] = []
        """File systems that were renewed: the end of one waits for its requests, and all of Python with it."""
        self._use(files)
        self.closed = threading.Event()
        """Set once every load that waits is to end."""

    def load(self, request: BlockRequest) -> pa.Buffer | None:
        """Return a block that has been verified; None once the loader is closed.

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
                        content = self._fetched(request)
                        return None if content is None else self.cache.keep(request.key, claim, content)
            except OSError as error:
                self.cache.problem = error
                break
            if self.closed.wait(CLAIM_POLL):
                return None
        content = self._fetched(request)
        return None if content is None else pa.py_buffer(content)

    def _cached(self, request: BlockRequest) -> pa.Buffer | None:
        found = self.cache.get(request.key)
        if found is not None and not (found.size == request.length and request.is_right(found)):
            self.cache.discard(request.key)
            return None
        return found

    def _fetched(self, request: BlockRequest) -> bytes | None:
        """Fetch a block until it is right; None once the loader is closed. Raises as `load` does."""
        num = 0
        since = time.monotonic()
        altered = b""
        while not self.closed.is_set():
            content, reason = self._attempt(request, num)
            if content and request.is_right(content):
                with self._lock:
                    was_noticed = self._noticed
                    self._noticed = False
                if was_noticed:
                    self._notify(f"{self._place} answers again.")
                return content
            if content:
                if content == altered:  # the attempts asked for other ranges: a fault on the way falls elsewhere
                    raise UserError(
                        f"{self._place}: {request.path} was altered: its bytes from {request.offset:,} on do not have "
                        f"the manifest's hash; {UPLOAD_AGAIN}."
                    )
                altered = content
            num, since = num + 1, since if num else time.monotonic()
            seconds = time.monotonic() - since
            if seconds > self._wait:
                raise StorageOutage(
                    f"{self._place} has not given {request.path} for {seconds:.0f} s ({reason}); check the network and "
                    "the credentials in the environment, and resume the run."
                )
            if seconds > NOTICE:
                with self._lock:
                    is_new = not self._noticed
                    self._noticed = True
                if is_new:
                    self._notify(f"{self._place} does not answer ({reason}); trying again for {self._wait:.0f} s.")
            with suppress(Exception):  # of any of fsspec's libraries: the next attempt fails, too, and says why
                call_within(self._renew, REQUEST_TIMEOUT)
            longest = min(FIRST_PAUSE * 2 ** min(num - 1, 20), LONGEST_PAUSE, max(FIRST_PAUSE, self._wait / 5))
            self.closed.wait(longest * random.uniform(0.5, 1.0))
        return None

    def _attempt(self, request: BlockRequest, num: int) -> tuple[bytes, str]:
        """Return the bytes of a block, not verified, and what is wrong; no bytes where the store gives none now.

        Every second attempt (`num` went before) asks for two halves, so that faults of answers fall elsewhere.
        """
        ends = [request.length // 2, request.length] if num % 2 else [request.length]
        try:
            content = b""
            for end in ends:
                first = request.offset + len(content)
                length = end - len(content)
                read = partial(self._read, request.path, first, length)
                content += call_within(read, REQUEST_TIMEOUT + length / SLOWEST)
            if len(content) == request.length:
                return content, "content without the manifest's hash"
            self._open.cache_clear()  # the file's size may have been told wrongly
            size = None
            needed = request.offset + request.length
            if num + 1 >= SHORT_ANSWERS:
                path = f"{self._files.path}/{request.path}"
                size = call_within(lambda: self._filesystem.get_file_info(path).size, REQUEST_TIMEOUT)
        except FileNotFoundError:
            raise UserError(f"{self._place}: {request.path} is missing; {UPLOAD_AGAIN}.") from None
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            return b"", first_line(error)
        if size is not None and size < needed:
            raise UserError(
                f"{self._place}: {request.path} was altered: it has {size:,} bytes, and its blocks by the manifest "
                f"{needed:,} or more; {UPLOAD_AGAIN}."
            )
        return b"", f"an answer of {len(content):,} bytes for {request.length:,}"

    def _read(self, path: str, first: int, length: int) -> bytes:
        """Read `length` bytes of a file from `first` on; fewer where it ends before."""
        full = f"{self._files.path}/{path}"
        if self._fsspec is not None:  # fsspec's open files read ahead, and share one position
            return bytes(self._fsspec.cat_file(full, start=first, end=first + length))
        file = self._open(full)
        length = min(length, file.size() - first)
        return bytes(file.read_at(length, first)) if length > 0 else b""

    def _renew(self) -> None:
        """Open the file system again, with the credentials that the environment holds now; at most once a minute."""
        with self._lock:
            if time.monotonic() - self._renewed < RENEWAL_INTERVAL:
                return
            self._renewed = time.monotonic()
        if self._fsspec is not None:
            with suppress(Exception):  # as above
                self._fsspec.clear_instance_cache()
        fresh = RemoteFiles.open(self._files.knob, self._files.location)
        with self._lock:
            self._former.append(self._filesystem)
            self._use(fresh)

    def _use(self, files: RemoteFiles) -> None:
        self._filesystem = with_timeouts(files.filesystem, SILENCE)
        self._fsspec = getattr(getattr(self._filesystem, "handler", None), "fs", None)
        self._open = lru_cache(OPEN_FILES)(self._filesystem.open_input_file)


class BlockFetcher:
    """Threads that fetch verified blocks through a cache: those that are needed, and those of a hint.

    Within a process a block is fetched once, however many threads ask for it; processes that share the cache agree by
    claims. Blocks of the newest hint stay mapped, and are verified once. Its threads end with `close`.
    """

    def __init__(
        self, files: RemoteFiles, cache: BlockCache, *, wait: float | None = None, notify: Notify = write_to_stderr
    ) -> None:
        """Fetch below `files` as `BlockLoader` does; the node's `cache` is closed with the fetcher."""
        self.cache = cache
        self._loader = BlockLoader(files, cache, wait, notify)
        self._changed = threading.Condition()
        self._answers: dict[str, Future[pa.Buffer]] = {}
        """Blocks that are being loaded, or wait for it because they are needed now."""
        self._needed: deque[BlockRequest] = deque()
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
        self._num_ahead = 0
        self._bytes_ahead = 0
        for _ in range(THREADS):
            threading.Thread(target=self._work, name="ditlab-blocks", daemon=True).start()

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[str, pa.Buffer]:
        """Return the blocks by key, verified and read-only, once all are there.

        Raises UserError for a block that the store holds altered or not at all, StorageOutage where the store does not
        answer, RuntimeError once the fetcher is closed.
        """
        found = dict[str, pa.Buffer]()
        answers = dict[str, Future[pa.Buffer]]()
        with self._changed:
            if self._loader.closed.is_set():
                raise RuntimeError("the fetcher is closed")
            for request in requests:
                key = request.key
                if (held := self._held.get(key)) is not None:
                    found[key] = held
                    self._keep(key, held)
                    continue
                if key not in self._answers:  # it may be one that is loaded ahead at the moment
                    self._answers[key] = Future()
                    self._needed.append(request)
                answers[key] = self._answers[key]
            self._changed.notify_all()
        return found | {key: answer.result() for key, answer in answers.items()}

    def expect(self, requests: Sequence[BlockRequest]) -> None:
        """Take a hint: blocks that are needed soon, in order, those in use now among them. It replaces the last one.

        They are fetched in the background, as far as there is room beside what is in use. An empty one releases all.
        """
        with self._changed:
            self._hint = {request.key for request in requests}
            before = self._kept
            self._kept = {}
            self._bytes_mapped = 0
            self._bytes_in_memory = 0
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
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(RuntimeError("the fetcher was closed"))
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
        while (task := self._next()) is not None:
            request, is_ahead = task
            block = None
            error = None
            try:
                block = self._loader.load(request)
            except Exception as raised:  # raised where the block is asked for
                error = raised
            with self._changed:
                if is_ahead:
                    self._num_ahead = self._num_ahead - 1
                    self._bytes_ahead = self._bytes_ahead - request.length
                answer = self._answers.pop(request.key)
                if block is not None:
                    self._held[request.key] = block
                    self._keep(request.key, block)
                    if is_ahead and request.key not in self.cache:  # no room: reading on would be in vain
                        self._expected.clear()
                if error is not None and not answer.done():
                    answer.set_exception(error)
                elif not answer.done():
                    answer.set_result(block)
                self._changed.notify_all()
            del block, error, answer  # they would hold the block until the next one

    def _next(self) -> tuple[BlockRequest, bool] | None:
        """Wait for a block to load; returns it, and whether it is only expected. None at the end."""
        with self._changed:
            while not self._loader.closed.is_set():
                if self._needed:
                    return self._needed.popleft(), False
                if (request := self._next_ahead()) is not None:
                    self._answers[request.key] = Future()
                    self._num_ahead = self._num_ahead + 1
                    self._bytes_ahead = self._bytes_ahead + request.length
                    return request, True
                self._changed.wait(AHEAD_POLL if self._expected else None)
            return None

    def _next_ahead(self) -> BlockRequest | None:
        # a function of its own: while a thread waits, its frame must not hold a block
        while self._expected and self._num_ahead < THREADS - RESERVED_THREADS:
            request = self._expected[0]
            if (held := self._held.get(request.key)) is not None:
                self._keep(request.key, held)
            elif request.key not in self._answers:
                return self._expected.popleft() if request.length <= self._room_ahead() else None
            self._expected.popleft()
        return None

    def _room_ahead(self) -> int:
        """Bytes of this process's share of the cache beside what it keeps, less a little for what comes now."""
        share = self.cache.share()
        return share - share // 16 - self._bytes_mapped - self._bytes_ahead


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
