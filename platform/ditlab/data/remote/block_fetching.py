"""Fetching of a store's blocks: those that are needed now at once, those that are needed soon in the background."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from weakref import WeakValueDictionary

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.block_loading import BlockLoader, BlockRequest, RangeReader
from ditlab.storage.remote import RemoteFiles

RESERVED_THREADS = 2
"""Threads that never read ahead, so that a block that is needed now does not wait for one."""
AHEAD_PAUSE = 1.0
"""Seconds without reading ahead after a failure: what is needed now finds out how long it lasts."""
AHEAD_POLL = 0.05
MEMORY_BYTES = 256 << 20
"""Most bytes of the hint's blocks that are kept in memory where the cache has no room: each is read many times."""
THREADS = 8
"""An object store answers one reader with some 50 to 100 MB/s."""


class BlockQueue:
    """Blocks that are asked for or expected, of one store, and the threads that load them."""

    def __init__(self, loader: BlockLoader, threads: int) -> None:
        """Start as many threads."""
        self.cache, self._loader = loader.cache, loader
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}
        """Blocks that are being loaded, or wait for it because they are needed now."""
        self._needed: deque[_Job] = deque()
        self._hint: dict[str, int] = {}
        """Blocks of the newest hint by key, with their bytes."""
        self._expected: deque[BlockRequest] = deque()
        """Blocks of the hint that were not looked at yet."""
        self._kept: dict[str, pa.Buffer] = {}
        """Blocks of the hint that are there: mapped, so that no process evicts them, and verified."""
        self._held: WeakValueDictionary[str, pa.Buffer] = WeakValueDictionary()
        """Verified blocks that someone in this process still holds."""
        self._bytes_in_memory = 0
        self._num_ahead, self._bytes_ahead, self._ahead_from, self._closed = 0, 0, 0.0, False
        self._num_ahead_most = max(1, threads - RESERVED_THREADS)
        self.wait_seconds = 0.0
        """Seconds that callers of `fetch` waited, all of them together."""
        for _ in range(threads):
            threading.Thread(target=self._work, name="ditlab-blocks", daemon=True).start()

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[str, pa.Buffer]:
        """Return the blocks by key, verified and read-only, once all are there.

        Raises UserError for a block that the store holds altered or not at all, StorageOutage where the store does not
        answer, RuntimeError once the fetcher is closed.
        """
        started, found, jobs = time.monotonic(), dict[str, pa.Buffer](), dict[str, _Job]()
        with self._changed:
            if self._closed:
                raise RuntimeError("the fetcher is closed")
            for request in requests:
                key = request.key
                if (held := self._held.get(key)) is not None:
                    found[key] = held
                    self._keep(key, held)
                elif key not in jobs:
                    jobs[key] = self._need(request)
            self._changed.notify_all()
        for key, job in jobs.items():
            job.done.wait()
            if job.error is not None:
                raise job.error
            assert job.block is not None
            found[key] = job.block
        with self._changed:
            self.wait_seconds += time.monotonic() - started
        return found

    def expect(self, requests: Sequence[BlockRequest]) -> None:
        """Take a hint: blocks that are needed soon, in order, those in use now among them. It replaces the last one.

        They are fetched into the cache in the background, as many as fit beside what is in use.
        """
        with self._changed:
            self._hint = {request.key: request.length for request in requests}
            self._kept = {key: self._kept[key] for key in self._hint if key in self._kept}
            self._bytes_in_memory = sum(block.size for key, block in self._kept.items() if key not in self.cache)
            while len(self._kept) > 1 and self._room_ahead() < 0:  # another process shares the cache now
                self._kept.popitem()
            self._expected = deque(request for request in requests if request.key not in self._kept)
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads once their requests end; callers that still wait get a RuntimeError. Waits for nothing."""
        with self._changed:
            self._closed = True
            self._hint.clear()
            self._kept.clear()
            self._expected.clear()
            waiting = list(self._jobs.values())
            self._changed.notify_all()
        self._loader.close()
        for job in waiting:
            job.end(None)
        self.cache.close()

    def _need(self, request: BlockRequest) -> _Job:
        """The job of a block that is needed now, which may be one that is loaded ahead at the moment."""
        job = self._jobs.get(request.key)
        if job is None:
            job = self._jobs[request.key] = _Job(request)
            self._needed.append(job)
        job.is_needed = True
        return job

    def _keep(self, key: str, block: pa.Buffer) -> None:
        """Keep a block of the hint; of those that the cache had no room for, a few in memory."""
        if key not in self._hint or key in self._kept:
            return
        if key not in self.cache:
            if self._bytes_in_memory + block.size > MEMORY_BYTES:
                return
            self._bytes_in_memory += block.size
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

    def _next(self) -> _Job | None:
        """Wait for a block to load; None at the end."""
        with self._changed:
            while not self._closed:
                if self._needed:
                    return self._needed.popleft()
                if (job := self._next_ahead()) is not None:
                    return job
                self._changed.wait(AHEAD_POLL if self._expected else None)
            return None

    def _next_ahead(self) -> _Job | None:
        if self._num_ahead >= self._num_ahead_most or time.monotonic() < self._ahead_from:
            return None
        while self._expected:
            request = self._expected[0]
            if (held := self._held.get(request.key)) is not None:
                self._keep(request.key, held)
            elif request.key not in self._jobs:
                if request.length > self._room_ahead():
                    return None
                job = self._jobs[request.key] = _Job(request, is_ahead=True)
                self._num_ahead, self._bytes_ahead = self._num_ahead + 1, self._bytes_ahead + request.length
                self._expected.popleft()
                return job
            self._expected.popleft()
        return None

    def _room_ahead(self) -> int:
        """Bytes of the cache beside blocks in use and those of other processes, less a little for what comes now."""
        share = self.cache.share()
        return share - share // 16 - self.cache.overhead_bytes - self.cache.mapped_bytes - self._bytes_ahead

    def _finish(self, job: _Job, block: pa.Buffer | None, error: Exception | None) -> None:
        key = job.request.key
        with self._changed:
            if job.is_ahead:
                self._num_ahead, self._bytes_ahead = self._num_ahead - 1, self._bytes_ahead - job.request.length
                job.is_ahead = False
            if block is None and error is None and job.is_needed and not self._closed:
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
                job.end(block, error)
            self._changed.notify_all()


class _Job:
    """A block that is loaded, or waits for it."""

    def __init__(self, request: BlockRequest, is_ahead: bool = False) -> None:
        self.request, self.is_ahead, self.is_needed = request, is_ahead, False
        self.done = threading.Event()
        self.block: pa.Buffer | None = None
        self.error: Exception | None = None

    def end(self, block: pa.Buffer | None, error: Exception | None = None) -> None:
        """Hand the block to those who wait."""
        if block is None and error is None and self.is_needed:
            error = RuntimeError("the fetcher was closed")
        self.block, self.error = (block if self.is_needed else None), error
        self.done.set()


class BlockFetcher:
    """Fetcher of verified blocks through a cache, for several threads.

    Within a process a block is fetched once, however many threads ask for it; processes that share the cache agree by
    claims. Blocks of the newest hint stay mapped, and are verified once. A fetcher that nobody holds any more is
    closed, and takes part in the cache no longer.
    """

    def __init__(
        self,
        files: RemoteFiles,
        cache: BlockCache,
        *,
        threads: int = THREADS,
        wait: float | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """Fetch below `files`.

        Args:
            files: where the store lies.
            cache: the node's cache, which is closed with the fetcher.
            threads: requests at a time, at least 3.
            wait: seconds for which a store that does not answer is asked again; None: `DITLAB_STORAGE_WAIT`.
            notify: shows a message to people; None: on standard error.
        """
        self.cache, self._reader = cache, RangeReader(files)
        self._loader = BlockLoader(self._reader, cache, wait, notify)
        self._queue = BlockQueue(self._loader, threads)
        self.close = weakref.finalize(self, self._queue.close)
        """Function that ends the threads and closes the cache; callers that still wait get a RuntimeError."""

    @property
    def bytes_fetched(self) -> int:
        """Bytes that came from the store."""
        return self._loader.bytes_fetched

    @property
    def requests_made(self) -> int:
        """Requests to the store."""
        return self._reader.requests_made

    @property
    def wait_seconds(self) -> float:
        """Seconds that callers of `fetch` waited, all of them together."""
        return self._queue.wait_seconds

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[str, pa.Buffer]:
        """Return the blocks by key, verified and read-only, once all are there.

        Raises UserError for a block that the store holds altered or not at all, StorageOutage where the store does not
        answer, RuntimeError once the fetcher is closed.
        """
        return self._queue.fetch(requests)

    def expect(self, requests: Sequence[BlockRequest]) -> None:
        """Take a hint: blocks that are needed soon, in order, those in use now among them. It replaces the last one.

        They are fetched into the cache in the background, as many as fit beside what is in use. An empty hint releases
        what is kept.
        """
        self._queue.expect(requests)


class ReadAhead:
    """Announcements of several folders to one fetcher: the newest of each, in turn."""

    def __init__(self, fetcher: BlockFetcher):
        self._fetcher = fetcher
        self._newest: dict[str, Sequence[BlockRequest]] = {}
        self._lock = threading.Lock()

    def expect(self, folder: str, requests: Sequence[BlockRequest]) -> None:
        """Announce the blocks of a folder that are needed soon, in their order, in place of its last announcement."""
        with self._lock:
            self._newest[folder] = requests
            in_turn = chain.from_iterable(zip_longest(*self._newest.values()))
            self._fetcher.expect([request for request in in_turn if request is not None])
