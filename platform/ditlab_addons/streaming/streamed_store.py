"""Streamed store: blocks are fetched from a URI when they are needed, and kept in the node's cache."""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from ditlab.data.stores.block_index import verify_entries
from ditlab.data.stores.blocks import digests
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.copies import STORES, Notify, copy_of, describe_store, fetch_copy, open_root
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    BucketsManifest,
    StoreManifest,
    read_manifest,
    row_bytes,
)
from ditlab.data.stores.store import Store, StoredBlock
from ditlab.errors import Unreachable
from ditlab.home import Home
from ditlab.spec.values import format_bytes
from ditlab.storage.files import folder_size
from ditlab_addons.streaming.block_fetching import BlockCache, BlockFetcher, BlockRequest

LEAST_MAPPED_BYTES = 64 * 2**20
"""Bytes of blocks that are mapped and verified at least, however small the cache."""
MAPPED_SHARE = 0.5
"""Share of the cache that is mapped at most: a mapped block keeps its room on the disk when it is evicted."""
BLOCKS, MANIFESTS = "blocks", "streamed"
"""Folders below the node's cache: of blocks, and of the manifests and tokenisers of streamed stores."""
FREE_SHARE = 0.05
"""Share of the disk that the cache of blocks leaves free."""
COPY_SHARE = 0.8
"""Share of a disk's free room up to which `data.access=auto` copies a store."""
KNOB = "data.path"
"""Setting that names the store, in messages."""


class StreamedStore(Store):
    """Store behind a URI, whose rows are fetched block by block, each verified whenever it is loaded."""

    def __init__(self, path: Path, fetcher: BlockFetcher, place: str = ""):
        """Make a store of the manifest in a local folder, where its attachments lie too.

        `place`: path of its files below the URI, `BUCKET/` for a bucket. The fetcher is shared by the buckets of a
        store. Raises UserError for an altered manifest.
        """
        super().__init__(path, read_manifest(path / MANIFEST_NAME, StoreManifest))
        self._fetcher = fetcher
        self._place = place
        self._loaded: OrderedDict[int, StoredBlock] = OrderedDict()
        self._lock = threading.Lock()

    def expect(self, blocks: np.ndarray) -> None:
        """Begin to fetch blocks (int64) in their order, in place of those announced before. Raises as `gather` does."""
        requests = self._requests(blocks)
        with self._lock:
            for number in self._loaded.keys() - requests.keys():
                del self._loaded[number]  # mapped, it would take the room of what is read ahead
        self._fetcher.expect(self._place, [requests[number] for number in blocks.tolist()])

    def close(self) -> None:
        """End the threads that fetch. Closing twice is fine."""
        self._fetcher.close()

    def verify(self) -> None:
        """Fetch and verify every block. Raises as `gather` does."""
        for block in range(self.layout.num_blocks):
            self._load(np.array([block]))

    def _load(self, blocks: np.ndarray) -> dict[int, StoredBlock]:
        """Return blocks by number, fetched together where they are not mapped.

        Raises UserError for a block that was altered, Unreachable where the place does not answer for long.
        """
        with self._lock:
            found = {number: self._loaded[number] for number in blocks.tolist() if number in self._loaded}
            for number in found:
                self._loaded.move_to_end(number)
        if len(found) == len(blocks):
            return found
        requests = self._requests(np.setdiff1d(blocks, np.fromiter(found, np.int64)))
        contents = self._fetcher.fetch(list(requests.values()))
        fetched = {number: self._read_block(number, contents[request.key]) for number, request in requests.items()}
        with self._lock:
            self._loaded.update(fetched)
            most = max(LEAST_MAPPED_BYTES, int(MAPPED_SHARE * self._fetcher.cache.limit_bytes))
            size = self.layout.block_rows * row_bytes(self.columns)
            while len(self._loaded) > max(1, most // size):
                self._loaded.popitem(last=False)
        return found | fetched

    def _read_block(self, block: int, content: pa.Buffer) -> StoredBlock:
        return self._read(content, int(self.layout.rows_of(np.array([block]))[0]))

    def _verify_block(self, content: memoryview, block: int, expected: tuple[bytes, ...]) -> None:
        if digests(self._read_block(block, pa.py_buffer(content))) != expected:
            raise ValueError("it differs from its SHA-256")

    def _requests(self, blocks: np.ndarray) -> dict[int, BlockRequest]:
        """Return the requests of blocks by number. Raises as `gather` does."""
        shards = self.layout.shard_of(blocks)
        entries = self._index.of_shards(np.unique(shards).tolist())
        found = {}
        for block, shard in zip(blocks.tolist(), shards.tolist(), strict=True):
            entry = entries[shard][block - int(self.layout.first_blocks[shard])]
            key = hashlib.sha256(b"".join(entry.digests)).hexdigest()  # the same for equal rows, in whatever store
            path = f"{self._place}{self.manifest.shards[shard].file}"
            verify = partial(self._verify_block, block=block, expected=entry.digests)
            found[block] = BlockRequest(key, path, entry.offset, entry.length, verify)
        return found

    def _read_index(self, places: Mapping[int, tuple[int, int]]) -> dict[int, bytes]:
        """Fetch the shards' parts of the index file together; they are kept as blocks are."""
        path = f"{self._place}{self.manifest.index.file}"
        requests = {}
        for shard, (first, length) in places.items():
            digest = self.manifest.shards[shard].blocks
            requests[shard] = BlockRequest(digest, path, first, length, partial(verify_entries, sha256=digest))
        contents = self._fetcher.fetch(list(requests.values()))
        return {shard: bytes(contents[request.key]) for shard, request in requests.items()}


def fits_disk(uri: str, home: Home) -> bool:
    """Return True where the store at a URI is copied: it takes at most COPY_SHARE of the free room, or a copy was
    begun.

    Raises UserError for a place without a store or with an altered one.
    """
    with suppress(Unreachable):  # there may be a copy
        store = describe_store(KNOB, uri)
        if not copy_of(home.node_cache / STORES, store.manifest).exists():
            home.node_cache.mkdir(parents=True, exist_ok=True)
            return store.size <= COPY_SHARE * shutil.disk_usage(home.node_cache).free
    return True


def open_streamed_store(uri: str, home: Home, cache_bytes: int, notify: Notify) -> AnyStore:
    """Open the store at a URI; its rows are fetched block by block, and kept in `cache_bytes` of this node's disk.

    Raises UserError for a place without a store or with an altered one; Unreachable where the place does not answer.
    """
    files, top = open_root(KNOB, uri)
    node_cache = home.node_cache
    is_new = not copy_of(node_cache / MANIFESTS, top.manifest).exists()
    folder = fetch_copy(
        node_cache / MANIFESTS,
        KNOB,
        uri,
        notify=lambda message: None,  # copied manifests are no news
        is_copied=lambda file: file.size is None and bool(file.sha256),  # what the columns need: the tokeniser
    )
    disk = shutil.disk_usage(node_cache)
    room = int(disk.free - FREE_SHARE * disk.total)
    if room < cache_bytes:  # what the cache has already is room, too
        cache_bytes = max(1, min(cache_bytes, room + folder_size(node_cache / BLOCKS)))
    cache = BlockCache(node_cache / BLOCKS, cache_bytes)
    if is_new:
        notify(
            f"{KNOB}={uri}: rows are fetched when they are needed, and kept in {node_cache / BLOCKS} on "
            f"{socket.gethostname()} (at most {format_bytes(cache.limit_bytes)})."
        )
    fetcher = BlockFetcher(files, cache)
    if not (folder / BUCKETS_NAME).exists():
        return StreamedStore(folder, fetcher)
    root = read_manifest(folder / BUCKETS_NAME, BucketsManifest)
    buckets = [each.folder for each in root.buckets]
    return BucketedStore(folder, root, [StreamedStore(folder / name, fetcher, f"{name}/") for name in buckets])
