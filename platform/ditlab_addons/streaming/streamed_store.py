"""Streamed store: blocks are fetched from a URI when they are needed, and kept in the node's
cache.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ditlab.data.stores.block_index import verify_entries
from ditlab.data.stores.blocks import digests
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.copies import (
    STORES,
    UPLOAD_AGAIN,
    Notify,
    copy_of,
    describe_store,
    fetch_copy,
    open_root,
    write_to_stderr,
)
from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    BucketsManifest,
    StoreManifest,
    read_manifest,
    row_bytes,
)
from ditlab.data.stores.store import Store, StoredBlock
from ditlab.errors import StorageOutage, Unreachable, UserError, disk_remedy, first_line
from ditlab.home import Home
from ditlab.spec.values import format_bytes
from ditlab.storage.files import folder_size, write_whole
from ditlab.storage.remote import RemoteFiles

THREADS = 8
THREADS_AHEAD = 6
"""Threads for blocks that are needed now, and for those of hints: an object store answers one
reader with some 50 to 100 MB/s."""
AHEAD_SHARE = 0.5
"""Share of the cache that the blocks of a hint take at most."""
SCAN_SHARE = 1 / 64
"""Share of the cache's limit that a process writes before it looks at all files again, and four
times that is freed.
"""
STORAGE_WAIT = 300.0
"""Seconds for which a store that does not answer is asked again: `DITLAB_STORAGE_WAIT`."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
"""Seconds between two attempts: each pause is twice the one before, and drawn from its upper
half.
"""
NOTICE = 5.0
"""Seconds of failure after which people read of it."""
SILENCE = 10.0
"""Seconds without a byte after which a request to S3 is given up."""
RENEWAL_INTERVAL = 60.0
"""Least seconds between two openings of the file system."""
SAME_ANSWERS = 4
"""Wrong answers of one content after which the store's file is taken to be altered: faults on the
way differ.
"""
OPEN_FILES = 256
"""Files that stay open: opening one asks an object store for its size, which costs as much as a
small range.
"""


_CACHE_REMEDY = "delete that folder, or point DITLAB_CACHE at another disk of this node"


class BlockCache:
    """Files of about `limit_bytes` at most, each a block named by the hash of its content.

    Processes of a node share it: a block takes its name in one rename, and those that were used
    longest ago go first. One that is deleted can be read on where it is mapped. The content is the
    caller's to verify. A disk that refuses costs the cache, and not the caller.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Open or make the cache, and evict what is over the limit. Raises UserError for a folder
        that is unusable.
        """
        self.limit_bytes = limit_bytes
        self.is_full = False
        """True where the disk takes no blocks."""
        self._folder = folder
        self._written = 0
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._evict()
        except OSError as error:
            raise UserError(
                f"The cache of blocks in {folder} cannot be used ({error.strerror or error}); "
                f"{disk_remedy(error, _CACHE_REMEDY)}."
            ) from None

    def get(self, key: str) -> pa.Buffer | None:
        """Map a block; None where it is missing."""
        path = self._folder / key
        try:
            with pa.memory_map(str(path)) as file:
                os.utime(path)  # the time of its last use
                return file.read_buffer() if file.size() else None
        except OSError:
            return None

    def keep(self, key: str, content: bytes) -> pa.Buffer:
        """Keep the content of a block; return it mapped, or from memory where there is no room."""
        try:
            with self._lock:
                self._written += len(content)
                if self._written > SCAN_SHARE * self.limit_bytes:
                    self._evict()
                if len(content) <= self.limit_bytes:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    write_whole(self._folder / key, content)
        except OSError:
            self.is_full = True
        return self.get(key) or pa.py_buffer(content)

    def _evict(self) -> None:
        """Delete the blocks that were used longest ago, beyond the limit less what is written until
        the next look.
        """
        files = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another process has deleted or renamed it
                state = entry.stat()
                files.append((state.st_mtime_ns, entry.path, state.st_size))
        held = sum(size for _, _, size in files)
        self._written = 0
        for _, path, size in sorted(files):
            if held <= self.limit_bytes * (1 - 4 * SCAN_SHARE):
                break
            Path(path).unlink(missing_ok=True)
            held -= size


@dataclass(frozen=True)
class BlockRequest:
    """A block of a store's file: where it lies, what it is named in the cache, how it is
    verified.
    """

    key: str
    """Hash over its content, as hexadecimal digits: its name in the cache."""
    path: str
    """The file below the store's URI."""
    offset: int
    """Its first byte in the file."""
    length: int
    verify: Callable[[memoryview], object]
    """Function that raises an error for content that is not the block's."""

    def is_right(self, content: bytes | pa.Buffer) -> bool:
        """Return True if content is the block's."""
        try:
            self.verify(memoryview(content).cast("B"))
        except Exception:  # whatever a parser makes of bytes that are none of its own
            return False
        return True


def storage_wait() -> float:
    """Return the seconds for which a store is asked. Raises UserError where DITLAB_STORAGE_WAIT is
    no such number.
    """
    text = os.environ.get("DITLAB_STORAGE_WAIT") or str(STORAGE_WAIT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"DITLAB_STORAGE_WAIT={text} is no number of seconds; write 300, or 0.")
    return seconds


class BlockFetcher:
    """Threads that fetch verified blocks through a cache: those that are needed, and those of a
    hint.

    Within a process a block is fetched once, however many threads ask for it. Blocks of the newest
    hint of each folder stay mapped, and are verified once.
    """

    def __init__(self, files: RemoteFiles, cache: BlockCache) -> None:
        """Fetch below `files`. Raises UserError where DITLAB_STORAGE_WAIT is no number of
        seconds.
        """
        self._wait = storage_wait()
        self.cache = cache
        self._noticed = 0.0
        self._place = f"{files.knob}={files.location}"
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._wanted: dict[str, Future[pa.Buffer]] = {}
        """Blocks that are needed now, until they are there."""
        self._expected: dict[str, Future[pa.Buffer]] = {}
        """Blocks of hints."""
        self._hints: dict[str, dict[str, int]] = {}
        """Bytes of the blocks of each folder's newest hint, by key."""
        self._needed = ThreadPoolExecutor(THREADS, thread_name_prefix="ditlab-blocks")
        self._ahead = ThreadPoolExecutor(THREADS_AHEAD, thread_name_prefix="ditlab-blocks-ahead")
        self._use(files)

    def fetch(self, requests: Sequence[BlockRequest]) -> dict[str, pa.Buffer]:
        """Return the blocks by key, verified and read-only, once all are there.

        Raises UserError for a block that the store holds altered or not at all, StorageOutage where
        the store does not answer, RuntimeError once the fetcher is closed.
        """
        with self._lock:
            answers = {request.key: self._answer(request) for request in requests}
        return {key: answer.result() for key, answer in answers.items()}

    def expect(self, folder: str, requests: Sequence[BlockRequest]) -> None:
        """Take a hint: blocks of a folder that are needed soon, in order. It replaces the folder's
        last one.

        They are fetched in the background, as far as the cache has room. An empty one releases all.
        """
        with self._lock:
            self._hints.pop(folder, None)
            room = AHEAD_SHARE * self.cache.limit_bytes - sum(
                sum(hint.values()) for hint in self._hints.values()
            )
            hint: dict[str, int] = {}
            self._hints[folder] = hint
            for request in requests:
                room -= request.length
                if room < 0 or self.cache.is_full:
                    break
                hint[request.key] = request.length
                if request.key not in self._expected:
                    under_way = self._wanted.get(request.key)
                    self._expected[request.key] = under_way or self._ahead.submit(
                        self._load, request
                    )
            for key in self._expected.keys() - set().union(*self._hints.values()):
                forgotten = self._expected.pop(key)
                if key not in self._wanted:
                    forgotten.cancel()

    def close(self) -> None:
        """End the threads once their requests end; callers that still wait get an error. Closing
        twice is fine.
        """
        self._closed.set()
        for pool in (self._needed, self._ahead):
            pool.shutdown(wait=False, cancel_futures=True)
        self._expected.clear()

    def _answer(self, request: BlockRequest) -> Future[pa.Buffer]:
        """Return a block that is needed now: one under way, or a new one, before all that are only
        expected.
        """
        key = request.key
        wanted = self._wanted.get(key)
        if wanted is not None:
            return wanted
        expected = self._expected.get(key)
        if expected is not None and not expected.cancel():
            return expected
        answer = self._wanted[key] = self._needed.submit(self._load, request)
        answer.add_done_callback(lambda _: self._wanted.pop(key, None))
        if expected is not None:
            self._expected[key] = answer
        return answer

    def _load(self, request: BlockRequest) -> pa.Buffer:
        """Return a block that has been verified. Raises as `fetch` does."""
        found = self.cache.get(request.key)
        if found is not None and request.is_right(found):
            return found
        return self.cache.keep(request.key, self._fetched(request))

    def _fetched(self, request: BlockRequest) -> bytes:
        """Fetch a block until it is right. Raises as `fetch` does."""
        since = time.monotonic()
        pause = FIRST_PAUSE
        wrong = b""
        same = 0
        while True:
            try:
                content = self._read(request)
            except FileNotFoundError:
                raise UserError(
                    f"{self._place}: {request.path} is missing; {UPLOAD_AGAIN}."
                ) from None
            except Exception as error:  # each of fsspec's libraries has exceptions of its own
                reason = first_line(error)
                self._renew()
            else:
                if request.is_right(content):
                    return content
                same = same + 1 if content == wrong else 1
                if same == SAME_ANSWERS:
                    raise UserError(
                        f"{self._place}: {request.path} was altered: its bytes from "
                        f"{request.offset:,} on do not have the manifest's hash; "
                        f"{UPLOAD_AGAIN}."
                    )
                wrong = content
                reason = f"{len(content):,} bytes without the manifest's hash"
                self._open.cache_clear()  # the file's size may have been told wrongly
            seconds = time.monotonic() - since
            if seconds > self._wait:
                raise StorageOutage(
                    f"{self._place} has not given {request.path} for {seconds:.0f} s "
                    f"({reason}); check the network and the credentials in the environment, "
                    "and resume the run."
                )
            if seconds > NOTICE and time.monotonic() - self._noticed > self._wait:
                self._noticed = time.monotonic()
                write_to_stderr(
                    f"{self._place} does not answer ({reason}); trying again for "
                    f"{self._wait:.0f} s."
                )
            if self._closed.wait(pause * random.uniform(0.5, 1.0)):
                raise RuntimeError("the fetcher was closed")
            pause = min(2 * pause, LONGEST_PAUSE, max(FIRST_PAUSE, self._wait / 5))

    def _read(self, request: BlockRequest) -> bytes:
        """Read a block's bytes; fewer where its file ends before."""
        path = f"{self._files.path}/{request.path}"
        handler = getattr(self._filesystem, "handler", None)
        if handler is not None:  # fsspec's open files read ahead, and share one position
            return bytes(
                handler.fs.cat_file(path, start=request.offset, end=request.offset + request.length)
            )
        file = self._open(path)
        length = min(request.length, file.size() - request.offset)
        if length > 0:
            return bytes(file.read_at(length, request.offset))
        return b""

    def _renew(self) -> None:
        """Open the file system again, with the credentials that the environment holds now; at most
        once a minute.
        """
        with self._lock:
            if time.monotonic() - self._opened < RENEWAL_INTERVAL:
                return
            # of any of fsspec's libraries: the next attempt fails, too, and says why
            with suppress(Exception):
                self._use(RemoteFiles.open(self._files.knob, self._files.location))

    def _use(self, files: RemoteFiles) -> None:
        self._files = files
        self._opened = time.monotonic()
        self._filesystem = with_timeouts(files.filesystem)
        self._open = lru_cache(OPEN_FILES)(self._filesystem.open_input_file)


def with_timeouts(filesystem: Any) -> Any:
    """Return the file system with requests that end after SILENCE seconds without a byte, and are
    not repeated.

    Only pyarrow's client of S3 has such settings; another is returned as it is.
    """
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    # credentials stay what they are: looked up, or the URI's
    settings = dict(filesystem.__reduce__()[1][0])
    settings |= {"request_timeout": SILENCE, "connect_timeout": SILENCE}
    return S3FileSystem(**settings, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1))


LEAST_MAPPED_BYTES = 64 * 2**20
"""Bytes of blocks that are mapped and verified at least, however small the cache."""
MAPPED_SHARE = 0.5
"""Share of the cache that is mapped at most: a mapped block keeps its room on the disk when it is
evicted.
"""
BLOCKS = "blocks"
MANIFESTS = "streamed"
"""Folders below the node's cache: of blocks, and of the manifests and tokenisers of streamed
stores.
"""
FREE_SHARE = 0.05
"""Share of the disk that the cache of blocks leaves free."""
COPY_SHARE = 0.8
"""Share of a disk's free room up to which `data.access=auto` copies a store."""
KNOB = "data.path"
"""Setting that names the store, in messages."""


class StreamedStore(Store):
    """Store behind a URI, whose rows are fetched block by block, each verified whenever it is
    loaded.
    """

    def __init__(self, path: Path, fetcher: BlockFetcher, place: str = ""):
        """Make a store of the manifest in a local folder, where its attachments lie too.

        `place`: path of its files below the URI, `BUCKET/` for a bucket. The fetcher is shared by
        the buckets of a store. Raises UserError for an altered manifest.
        """
        super().__init__(path, read_manifest(path / MANIFEST_NAME, StoreManifest))
        self._fetcher = fetcher
        self._place = place
        self._loaded: OrderedDict[int, StoredBlock] = OrderedDict()
        self._lock = threading.Lock()

    def expect(self, blocks: np.ndarray) -> None:
        """Begin to fetch blocks (int64) in their order, in place of those announced before. Raises
        as `gather` does.
        """
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

        Raises UserError for a block that was altered, Unreachable where the place does not answer
        for long.
        """
        with self._lock:
            found = {
                number: self._loaded[number] for number in blocks.tolist() if number in self._loaded
            }
            for number in found:
                self._loaded.move_to_end(number)
        if len(found) == len(blocks):
            return found
        requests = self._requests(np.setdiff1d(blocks, np.fromiter(found, np.int64)))
        contents = self._fetcher.fetch(list(requests.values()))
        fetched = {
            number: self._read_block(number, contents[request.key])
            for number, request in requests.items()
        }
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
            # the same for equal rows, in whatever store
            key = hashlib.sha256(b"".join(entry.digests)).hexdigest()
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
            requests[shard] = BlockRequest(
                digest, path, first, length, partial(verify_entries, sha256=digest)
            )
        contents = self._fetcher.fetch(list(requests.values()))
        return {shard: bytes(contents[request.key]) for shard, request in requests.items()}


def fits_disk(uri: str, home: Home) -> bool:
    """Return True where the store at a URI is copied: it takes at most COPY_SHARE of the free room,
    or a copy was begun.

    Raises UserError for a place without a store or with an altered one.
    """
    with suppress(Unreachable):  # there may be a copy
        store = describe_store(KNOB, uri)
        if not copy_of(home.node_cache / STORES, store.manifest).exists():
            home.node_cache.mkdir(parents=True, exist_ok=True)
            return store.size <= COPY_SHARE * shutil.disk_usage(home.node_cache).free
    return True


def open_streamed_store(uri: str, home: Home, cache_bytes: int, notify: Notify) -> AnyStore:
    """Open the store at a URI; its rows are fetched block by block, and kept in `cache_bytes` of
    this node's disk.

    Raises UserError for a place without a store or with an altered one; Unreachable where the place
    does not answer.
    """
    files, top = open_root(KNOB, uri)
    node_cache = home.node_cache
    is_new = not copy_of(node_cache / MANIFESTS, top.manifest).exists()
    folder = fetch_copy(
        node_cache / MANIFESTS,
        KNOB,
        uri,
        notify=lambda message: None,  # copied manifests are no news
        # what the columns need: the tokeniser
        is_copied=lambda file: file.size is None and bool(file.sha256),
    )
    disk = shutil.disk_usage(node_cache)
    room = int(disk.free - FREE_SHARE * disk.total)
    if room < cache_bytes:  # what the cache has already is room, too
        cache_bytes = max(1, min(cache_bytes, room + folder_size(node_cache / BLOCKS)))
    cache = BlockCache(node_cache / BLOCKS, cache_bytes)
    if is_new:
        notify(
            f"{KNOB}={uri}: rows are fetched when they are needed, and kept in "
            f"{node_cache / BLOCKS} on {socket.gethostname()} (at most "
            f"{format_bytes(cache.limit_bytes)})."
        )
    fetcher = BlockFetcher(files, cache)
    if not (folder / BUCKETS_NAME).exists():
        return StreamedStore(folder, fetcher)
    root = read_manifest(folder / BUCKETS_NAME, BucketsManifest)
    buckets = [each.folder for each in root.buckets]
    return BucketedStore(
        folder, root, [StreamedStore(folder / name, fetcher, f"{name}/") for name in buckets]
    )
