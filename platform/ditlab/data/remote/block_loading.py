"""Loading of a block: from the cache, else from the object store, verified, again until it is right."""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.block_request import BlockRequest
from ditlab.data.remote.range_reading import RangeReader
from ditlab.data.remote.retrying import Trouble, storage_wait
from ditlab.data.remote.timed_calls import TimedCalls
from ditlab.data.stores.files import UPLOAD_AGAIN
from ditlab.errors import StorageOutage, UserError, first_line

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
        self._notify = notify or _to_stderr
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
        trouble = Trouble(self._wait)
        while not self.closed.is_set():
            content = self._attempt(request, trouble)
            if content is not None:
                if _is_right(request, memoryview(content)):
                    self._answered()
                    return pa.py_buffer(content)
                self._note_altered(request, content, trouble)
            if not is_wanted():
                return None
            self._prepare_again(request, trouble)
        return None

    def _attempt(self, request: BlockRequest, trouble: Trouble) -> bytes | None:
        """Return the bytes of a block, not verified; None where the store does not give them now."""
        timeout = REQUEST_TIMEOUT + request.length / SLOWEST
        is_cut = trouble.num % 2 > 0  # every second attempt asks otherwise, so that faults of answers fall elsewhere
        more = min(request.offset, MORE_BYTES) if is_cut else 0
        read = partial(self.reader.read, request.path, request.offset - more, request.length + more, 1 + is_cut)
        try:
            content: bytes = self._calls.run(read, timeout)[more:]
        except FileNotFoundError:
            raise UserError(f"{self._place}: {request.path} is missing; {UPLOAD_AGAIN}.") from None
        except Exception as error:  # each of fsspec's libraries has exceptions of its own
            trouble.note(first_line(error))
            return None
        with self._lock:
            self.bytes_fetched += len(content)
        if len(content) == request.length:
            return content
        self.reader.forget(request.path)
        trouble.note(f"an answer of {len(content):,} bytes for {request.length:,}")
        if trouble.num >= SHORT_ANSWERS:
            self._check_size(request, trouble)
        return None

    def _check_size(self, request: BlockRequest, trouble: Trouble) -> None:
        """Raise UserError for a file that ends before the block does."""
        try:
            size = self._calls.run(partial(self.reader.size_of, request.path), REQUEST_TIMEOUT)
        except Exception as error:  # as above
            trouble.reason = first_line(error)
            return
        if 0 <= size < request.offset + request.length:
            raise UserError(
                f"{self._place}: {request.path} was altered: it has {size:,} bytes, and its blocks by the manifest "
                f"{request.offset + request.length:,} or more; {UPLOAD_AGAIN}."
            )

    def _note_altered(self, request: BlockRequest, content: bytes, trouble: Trouble) -> None:
        """Raise UserError for a block that comes altered in the same way twice.

        The two attempts asked for other ranges, so that a fault on the way would have fallen elsewhere.
        """
        if content == trouble.content:
            raise UserError(
                f"{self._place}: {request.path} was altered: its bytes from {request.offset:,} on do not have the "
                f"manifest's hash; {UPLOAD_AGAIN}."
            )
        trouble.note("content without the manifest's hash", content)

    def _prepare_again(self, request: BlockRequest, trouble: Trouble) -> None:
        """Wait before the next attempt. Raises StorageOutage after the last one."""
        if trouble.is_over:
            raise StorageOutage(
                f"{self._place} has not given {request.path} for {trouble.seconds:.0f} s ({trouble.reason}); check the "
                "network and the credentials in the environment, and resume the run."
            )
        if trouble.seconds > NOTICE:
            self._announce(f"{self._place} does not answer ({trouble.reason}); trying again for {self._wait:.0f} s.")
        try:
            self._calls.run(self.reader.renew, REQUEST_TIMEOUT)
        except Exception as error:  # as above
            trouble.reason = first_line(error)
        self.closed.wait(trouble.pause())

    @property
    def _place(self) -> str:
        return f"{self.reader.files.knob}={self.reader.files.location}"

    def _announce(self, message: str) -> None:
        with self._lock:
            is_new, self._noticed = not self._noticed, True
        if is_new:
            self._notify(message)

    def _answered(self) -> None:
        if self._noticed:
            with self._lock:
                was_noticed, self._noticed = self._noticed, False
            if was_noticed:
                self._notify(f"{self._place} answers again.")


def _is_right(request: BlockRequest, content: memoryview) -> bool:
    try:
        request.verify(content)
    except Exception:  # whatever a parser makes of bytes that are none of its own
        return False
    return True


def _to_stderr(message: str) -> None:
    sys.stderr.write(f"{message}\n")
