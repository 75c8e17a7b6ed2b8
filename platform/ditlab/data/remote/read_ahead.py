"""Blocks that the buckets of a store will need soon, announced together."""

import threading
from collections.abc import Sequence
from itertools import chain, zip_longest

from ditlab.data.remote.block_fetching import BlockFetcher
from ditlab.data.remote.block_request import BlockRequest


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
