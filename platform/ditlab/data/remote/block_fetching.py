"""Fetching of a store's blocks: those that are needed now at once, those that are needed soon in the background."""

import weakref
from collections.abc import Callable, Sequence

import pyarrow as pa

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.block_loading import BlockLoader
from ditlab.data.remote.block_queue import BlockQueue
from ditlab.data.remote.block_request import BlockRequest
from ditlab.data.remote.range_reading import RangeReader
from ditlab.storage.remote import RemoteFiles

__all__ = ["BlockFetcher", "BlockRequest"]

THREADS = 8
"""An object store answers one reader with some 50 to 100 MB/s."""


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
