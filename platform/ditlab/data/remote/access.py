"""Access to a store behind a URI: a copy on the node, or rows fetched when they are needed."""

import shutil
from dataclasses import dataclass
from typing import Literal

from ditlab.data.remote.manifests import describe_store
from ditlab.data.remote.node_copy import STORES, NodeCopies, Notify, open_remote_store, write_to_stderr
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import BLOCK_VERSION
from ditlab.errors import Unreachable
from ditlab.home import Home

COPY_SHARE = 0.8
"""Share of a disk's free room up to which `auto` copies a store."""


@dataclass(frozen=True)
class RemoteAccess:
    """Choice of how the rows of a store behind a URI are read."""

    kind: Literal["copy", "stream", "auto"] = "copy"
    cache_bytes: int = 0
    """Most bytes of fetched rows that a node keeps."""


COPY = RemoteAccess()


def open_remote(
    knob: str,
    uri: str,
    home: Home,
    verify: bool = True,
    notify: Notify = write_to_stderr,
    access: RemoteAccess = COPY,
) -> AnyStore:
    """Open the store at a URI.

    `auto` copies a store that fits COPY_SHARE of the free room, or that has no blocks to fetch. Raises as
    `node_copy.open_remote_store` and `streaming.open_streamed_store` do.
    """
    if access.kind == "stream" or (access.kind == "auto" and _is_too_large(knob, uri, home, notify)):
        from ditlab.data.remote.streaming import open_streamed_store

        return open_streamed_store(knob, uri, home, access.cache_bytes, notify)
    return open_remote_store(knob, uri, home, verify, notify)


def _is_too_large(knob: str, uri: str, home: Home, notify: Notify) -> bool:
    """Return True for a store that can be streamed and does not fit the disk."""
    try:
        store = describe_store(knob, uri)
    except Unreachable:
        return False  # there may be a copy
    if any(part.manifest.version < BLOCK_VERSION for part in store.parts):
        return False
    if NodeCopies(home.node_cache / STORES, notify).place_of(store.manifest).exists():  # begun, at least
        return False
    home.node_cache.mkdir(parents=True, exist_ok=True)
    return store.size > COPY_SHARE * shutil.disk_usage(home.node_cache).free
