"""Opening of stores behind a URI for streaming: manifests and tokenisers on the node, rows when they are needed."""

import shutil
import socket
from pathlib import Path

from ditlab.data.remote.block_cache import BlockCache
from ditlab.data.remote.block_fetching import BlockFetcher
from ditlab.data.remote.manifests import open_root
from ditlab.data.remote.node_copy import NodeCopies, Notify, format_bytes
from ditlab.data.remote.read_ahead import ReadAhead
from ditlab.data.remote.streamed_store import StreamedStore
from ditlab.data.stores.bucket_manifest import BUCKETS_NAME, BucketsManifest
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.files import StoreFile
from ditlab.data.stores.manifest import BLOCK_VERSION, StoreManifest
from ditlab.data.stores.manifest_parsing import parse_buckets_manifest, read_manifest_bytes
from ditlab.data.stores.store import read_manifest
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.storage.files import folder_size
from ditlab.storage.remote import RemoteFiles

BLOCKS, MANIFESTS = "blocks", "streamed"
"""Folders below the node's cache: of blocks, and of the manifests and tokenisers of streamed stores."""
FREE_SHARE = 0.05
"""Share of the disk that the cache of blocks leaves free."""


def open_streamed_store(knob: str, uri: str, home: Home, cache_bytes: int, notify: Notify) -> AnyStore:
    """Open the store at a URI; its rows are fetched block by block, and kept in `cache_bytes` of this node's disk.

    Raises UserError, naming the knob, for a place without a store or with an altered one, and for a store without
    blocks; Unreachable where the place does not answer.
    """
    files, top = open_root(knob, uri)
    copies = NodeCopies(home.node_cache / MANIFESTS, _drop, is_copied=_is_attachment)
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
    return _stream(files, folder, root, parts, BlockFetcher(files, cache))


def _stream(
    files: RemoteFiles,
    folder: Path,
    root: BucketsManifest | None,
    parts: dict[str, StoreManifest],
    fetcher: BlockFetcher,
) -> AnyStore:
    ahead = ReadAhead(fetcher)
    stores = [StreamedStore(folder / name, manifest, fetcher, ahead, name) for name, manifest in parts.items()]
    return stores[0] if root is None else BucketedStore(folder, root, stores)


def _drop(message: str) -> None:
    """Drop a message: that manifests were copied is no news."""


def _is_attachment(file: StoreFile) -> bool:
    """Return True for files that the columns need to be understood: the tokeniser."""
    return file.size is None and bool(file.sha256)


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
