"""Streamed store: blocks are fetched from a URI when they are needed, and kept in the node's cache.

Manifests and tokenisers are on the node from the start.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.block_fetching import BlockFetcher, ReadAhead
from ditlab.data.remote.block_loading import BlockRequest
from ditlab.data.remote.copies import NodeCopies, Notify, format_bytes, open_root
from ditlab.data.stores.block_index import KEPT_SHARDS, BlockEntry, entry_bytes, unpack_entries, verify_entries
from ditlab.data.stores.blocks import arrow_schema, digests, read_block
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.files import StoreFile
from ditlab.data.stores.manifest import (
    BLOCK_VERSION,
    BUCKETS_NAME,
    BucketsManifest,
    StoreManifest,
    parse_buckets_manifest,
    read_manifest_bytes,
)
from ditlab.data.stores.store import Store, read_manifest
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.storage.files import folder_size

LEAST_MAPPED_BYTES = 64 * 2**20
"""Bytes of blocks that are mapped and verified at least, however small the cache."""
MAPPED_SHARE = 0.5
"""Share of this process's part of the cache that is mapped at most: mapped blocks cannot be evicted."""

Rows = Mapping[str, np.ndarray]
"""Rows of a block by column, (rows, *shape) each, in the stored dtype."""
BLOCKS, MANIFESTS = "blocks", "streamed"
"""Folders below the node's cache: of blocks, and of the manifests and tokenisers of streamed stores."""
FREE_SHARE = 0.05
"""Share of the disk that the cache of blocks leaves free."""


class StreamedStore(Store):
    """Store behind a URI, whose rows are fetched block by block, each verified whenever it is loaded."""

    def __init__(self, path: Path, manifest: StoreManifest, fetcher: BlockFetcher, ahead: ReadAhead, folder: str = ""):
        """Make a store of its manifest.

        `path`: local folder of its attachments; `folder`: its place below the URI, that of a bucket. `fetcher` and
        `ahead` are shared by the buckets of a store.
        """
        super().__init__(path, manifest)
        self._fetcher, self._ahead, self._folder = fetcher, ahead, folder
        self._schema = arrow_schema(manifest.columns)
        self._first_entry = np.cumsum(self.layout.shard_blocks) - self.layout.shard_blocks
        self._loaded: OrderedDict[int, Rows] = OrderedDict()
        self._entries_of: OrderedDict[int, list[BlockEntry]] = OrderedDict()
        self._lock = threading.Lock()

    def expect(self, blocks: np.ndarray) -> None:
        """Begin to fetch blocks (int64) that will be read soon, in their order; an earlier announcement is given up.

        Raises as `gather` does, where the places of the blocks cannot be read.
        """
        numbers = blocks.tolist()
        entries = self._find_entries(blocks)
        with self._lock:
            for number in self._loaded.keys() - set(numbers):
                del self._loaded[number]  # mapped, it would take the room of what is read ahead
        self._ahead.expect(self._folder, [self._request(number, entries[number]) for number in numbers])

    def close(self) -> None:
        """End the threads that fetch. Closing twice is fine."""
        self._fetcher.close()

    def verify(self) -> None:
        """Fetch and verify every block. Raises as `gather` does."""
        for block in range(self.layout.num_blocks):
            self._load(np.array([block]))

    def start_verifying(self, at_once: bool) -> None:
        """Verify the store now; each block is verified when it is loaded, anyway."""
        if at_once:
            self.verify()

    def tensor(self, column: str) -> Tensor:
        """Return the whole column, (rows, *shape), in memory: every block is fetched."""
        return self.gather(column, np.arange(len(self)))

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy the given rows of a column in the given order: (len(rows), *shape).

        `rows`: int64, in [0, len(store)); `out`: tensor to copy into. Blocks that are missing are fetched together.
        Raises UserError for a block that was altered, Unreachable where the place does not answer for long.
        """
        stored = self.columns[column]
        if out is None:
            out = torch.empty((len(rows), *stored.shape), dtype=getattr(torch, stored.dtype))
        target = (out.view(torch.uint8) if out.dtype == torch.bool else out).numpy()
        blocks = self.layout.blocks_of(rows)
        order = np.argsort(blocks, kind="stable")
        numbers, starts = np.unique(blocks[order], return_index=True)
        firsts = self.layout.first_row(numbers)
        loaded = self._load(numbers)
        for number, first, places in zip(numbers.tolist(), firsts, np.split(order, starts[1:]), strict=True):
            target[places] = loaded[number][column][rows[places] - first]
        return out

    def _load(self, blocks: np.ndarray) -> dict[int, Rows]:
        """Return blocks by number, fetched together where they are not mapped."""
        found: dict[int, Rows] = {}
        with self._lock:
            for number in blocks.tolist():
                if number in self._loaded:
                    self._loaded.move_to_end(number)
                    found[number] = self._loaded[number]
        missing = np.array([number for number in blocks.tolist() if number not in found], np.int64)
        if not len(missing):
            return found
        entries = self._find_entries(missing)
        requests = {number: self._request(number, entries[number]) for number in missing.tolist()}
        contents = self._fetcher.fetch(list(requests.values()))
        for number, request in requests.items():
            found[number] = self._read(number, contents[request.key])
        with self._lock:
            self._loaded.update((number, found[number]) for number in missing.tolist())
            most = max(LEAST_MAPPED_BYTES, int(MAPPED_SHARE * self._fetcher.cache.share()))
            size = self.layout.block_rows * sum(column.row_bytes for column in self.columns.values())
            while len(self._loaded) > max(1, most // size):
                self._loaded.popitem(last=False)
        return found

    def _request(self, block: int, entry: BlockEntry) -> BlockRequest:
        shard = self.manifest.shards[int(self.layout.shard_of(np.array([block]))[0])]
        verify = partial(self._verify, block, entry)
        return BlockRequest(entry.key, self._folder, shard.file, entry.offset, entry.length, verify)

    def _verify(self, block: int, entry: BlockEntry, content: memoryview) -> None:
        """Raise ValueError for bytes that are not those of the entry's hashes."""
        try:
            found = digests(self._read(block, content))
        except (pa.ArrowException, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise ValueError(str(error)) from error
        if found != entry.digests:
            raise ValueError("it differs from its SHA-256")

    def _read(self, block: int, content: memoryview) -> Rows:
        rows = int(self.layout.rows_of(np.array([block]))[0])
        return read_block(pa.py_buffer(content), self.columns, self._schema, rows)

    def _find_entries(self, blocks: np.ndarray) -> dict[int, BlockEntry]:
        """Return the entries of blocks by number; those of a shard's blocks are fetched together, once."""
        shards = self.layout.shard_of(blocks)
        of_shard: dict[int, Sequence[BlockEntry]] = {}
        with self._lock:
            for shard in np.unique(shards).tolist():
                if shard in self._entries_of:
                    self._entries_of.move_to_end(shard)
                    of_shard[shard] = self._entries_of[shard]
        missing = [shard for shard in np.unique(shards).tolist() if shard not in of_shard]
        if missing:
            requests = {shard: self._index_request(shard) for shard in missing}
            contents = self._fetcher.fetch(list(requests.values()))
            fresh = {
                shard: unpack_entries(bytes(contents[each.key]), len(self.columns)) for shard, each in requests.items()
            }
            of_shard.update(fresh)
            with self._lock:
                self._entries_of.update(fresh)
                while len(self._entries_of) > KEPT_SHARDS:
                    self._entries_of.popitem(last=False)
        return {
            block: of_shard[shard][block - int(self._first_entry[shard])]
            for block, shard in zip(blocks.tolist(), shards.tolist(), strict=True)
        }

    def _index_request(self, shard: int) -> BlockRequest:
        """Return the request for a shard's part of the index file, which is kept as a block is."""
        assert self.manifest.index is not None, "a store without blocks is not streamed"
        size, digest = entry_bytes(len(self.columns)), self.manifest.shards[shard].blocks
        place, length = int(self._first_entry[shard]) * size, int(self.layout.shard_blocks[shard]) * size
        verify = partial(verify_entries, sha256=digest)
        return BlockRequest(digest, self._folder, self.manifest.index.file, place, length, verify)


def open_streamed_store(knob: str, uri: str, home: Home, cache_bytes: int, notify: Notify) -> AnyStore:
    """Open the store at a URI; its rows are fetched block by block, and kept in `cache_bytes` of this node's disk.

    Raises UserError, naming the knob, for a place without a store or with an altered one, and for a store without
    blocks; Unreachable where the place does not answer.
    """
    files, top = open_root(knob, uri)

    def is_attachment(file: StoreFile) -> bool:
        return file.size is None and bool(file.sha256)  # what the columns need to be understood: the tokeniser

    copies = NodeCopies(home.node_cache / MANIFESTS, lambda message: None, is_attachment)  # copied manifests: no news
    is_new = not copies.place_of(top.manifest).exists()
    folder = copies.fetch(knob, uri)
    root, parts = _manifests(folder)
    for manifest in parts.values():
        if manifest.version < BLOCK_VERSION:
            raise UserError(
                f"{knob}={uri} was written in version {manifest.version} of the format, whose rows cannot be fetched "
                "and verified in parts; import the data again, or set data.access to copy."
            )
    cache = BlockCache(home.node_cache / BLOCKS, _fitting(home.node_cache, cache_bytes))
    if is_new:
        notify(
            f"{knob}={uri}: rows are fetched when they are needed, and kept in {home.node_cache / BLOCKS} on "
            f"{socket.gethostname()} (at most {format_bytes(cache.limit_bytes)})."
        )
    fetcher = BlockFetcher(files, cache)
    ahead = ReadAhead(fetcher)
    stores = [StreamedStore(folder / name, manifest, fetcher, ahead, name) for name, manifest in parts.items()]
    return stores[0] if root is None else BucketedStore(folder, root, stores)


def _manifests(folder: Path) -> tuple[BucketsManifest | None, dict[str, StoreManifest]]:
    """Read the manifests of a store; None and one manifest under the empty name for a plain one."""
    buckets = folder / BUCKETS_NAME
    if not buckets.exists():
        return None, {"": read_manifest(folder)}
    root = parse_buckets_manifest(read_manifest_bytes(buckets), str(buckets))
    return root, {bucket.folder: read_manifest(folder / bucket.folder) for bucket in root.buckets}


def _fitting(folder: Path, cache_bytes: int) -> int:
    """Return the bytes that the cache may take: what was asked for, and no more than the disk has room for."""
    folder.mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(folder)
    room = int(disk.free - FREE_SHARE * disk.total)
    if room >= cache_bytes:
        return cache_bytes
    return max(1, min(cache_bytes, room + folder_size(folder / BLOCKS)))
