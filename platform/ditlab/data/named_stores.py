"""Stores named by a user: by a URI (copied to the node, or its rows fetched), a folder's path or a plain name."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ditlab.data.remote.copies import STORES, Notify, copy_of, describe_store, open_remote_store, write_to_stderr
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.errors import Unreachable, UserError, first_line
from ditlab.home import Home
from ditlab.spec.uris import is_uri

COPY_SHARE = 0.8
"""Share of a disk's free room up to which `auto` copies a store."""


def open_named_store(
    option: str,
    name: str,
    home: Home,
    verify: bool = True,
    notify: Notify = write_to_stderr,
    access: Literal["copy", "stream", "auto"] = "copy",
    cache_bytes: int = 0,
) -> AnyStore:
    """Open the store that a user names by a URI, a folder's path or a plain name.

    `option` is the setting that holds the name; `verify` and `notify` are as in `splits.open_data`; `access` and
    `cache_bytes`, the most bytes of fetched rows that a node keeps, are for URIs alone, of which `auto` copies a store
    that fits COPY_SHARE of the free room. Raises UserError for a store that is missing (with the command that makes it)
    or altered, and as `copies.open_remote_store` and `streamed_store.open_streamed_store` do.
    """
    if not is_uri(name):
        return open_store(store_folder(name, home), verify)
    is_streamed = access == "stream"
    if access == "auto":  # one that does not fit the disk, and of which no copy was begun
        with suppress(Unreachable):  # there may be a copy
            store = describe_store(option, name)
            if not copy_of(home.node_cache / STORES, store.manifest).exists():
                home.node_cache.mkdir(parents=True, exist_ok=True)
                is_streamed = store.size > COPY_SHARE * shutil.disk_usage(home.node_cache).free
    if is_streamed:
        from ditlab.data.remote.streamed_store import open_streamed_store

        return open_streamed_store(option, name, home, cache_bytes, notify)
    return open_remote_store(option, name, home, verify, notify)


def store_folder(name: str, home: Home) -> Path:
    """Return the absolute folder of a store: one in the working directory or, for a plain name, below `home.stores`.

    A store in the working directory comes first; a folder there without a store hides no store of the home's. Links in
    the path are followed here, once. Raises UserError for a path that leads nowhere, as a link in a circle does.
    """
    try:
        here = Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle, or a user without a home
        raise UserError(f"{name[:200]} leads to no folder ({first_line(error)}); name the folder of a store.") from None
    known = home.stores / name
    is_plain = len(Path(name).parts) == 1
    return known if is_plain and holds_store(known) and not holds_store(here) else here
