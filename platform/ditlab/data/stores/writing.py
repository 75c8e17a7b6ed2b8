"""Writing a plain or bucketed store in place of an older one, and what changes by it; needs no
torch or pyarrow.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from ditlab.data.stores.manifest import (
    BUCKETS_NAME,
    MANIFEST_NAME,
    Bucket,
    BucketsManifest,
    Columns,
    Source,
    StoreFacts,
    format_manifest,
)
from ditlab.data.stores.receipt import SourceReceipt
from ditlab.errors import UserError
from ditlab.storage.files import sync_folder, write_durably, writing_into

if TYPE_CHECKING:  # torch and pyarrow, which an importer's --help can do without
    from ditlab.data.stores.bucketed_store import AnyStore
    from ditlab.data.stores.store import Store

WriteOutcome = Literal["written", "replaced", "unchanged"]
PARTIAL = ".partial-"
"""Prefix of folders of unfinished imports; the next import that succeeds removes them."""
BUCKET_FOLDER = re.compile(rf"\d+x\d+-[0-9a-f]{{8}}|{re.escape(PARTIAL)}[0-9a-f]{{32}}")
"""Pattern of the names of a bucketed store's folders."""


@dataclass(frozen=True)
class WrittenStore:
    """Store on disk after a write."""

    store: AnyStore
    outcome: WriteOutcome = "written"
    """`written`: no store was there before; `replaced`: another one was; `unchanged`: one of the
    same content. Of a store that was written aside, `named_stores.publish` knows it."""


def write_store(
    path: Path,
    columns: Columns,
    batches: Iterable[Mapping[str, np.ndarray]],
    **facts: Unpack[StoreFacts],
) -> WrittenStore:
    """Write a plain store in place of an older one, if any, also one of the same content: that
    repairs altered shards.

    Raises UserError for a bucketed store in the folder, and as `write_batches` does.
    """
    from ditlab.data.stores.store import Store
    from ditlab.data.stores.writer import write_batches

    refuse_bucketed_store(path)
    existed = (path / MANIFEST_NAME).exists()
    before = ""
    with suppress(UserError):
        there = Store.open(path, verify=False)
        there.verify()
        before = there.fingerprint
    write_batches(path, columns, batches, **facts)
    store = Store.open(path, verify=False)
    if store.fingerprint == before:
        return WrittenStore(store, "unchanged")
    return WrittenStore(store, "replaced" if existed else "written")


def place_buckets(
    path: Path,
    stores: Mapping[tuple[int, int], Store],
    *,
    name: str,
    description: str,
    source: Source,
    receipt: SourceReceipt | None = None,
) -> WrittenStore:
    """Make a bucketed store, in place of an older one, of stores by (height, width), which lie
    aside on the same disk.

    They are moved into folders below `path` that carry their contents' hash, and then the manifest
    takes the old one's place in a single rename. Its folders, and what killed imports have left,
    are removed after that; only one import at a time may write to a folder. Raises UserError for a
    folder that cannot be written.
    """
    from ditlab.data.stores.bucketed_store import BucketedStore

    ordered = sorted(stores.items(), key=lambda item: (item[0][0] * item[0][1], item[0][0]))
    manifest = BucketsManifest(
        name=name,
        description=description,
        buckets=tuple(
            Bucket(
                folder=f"{height}x{width}-{store.fingerprint[:8]}",
                height=height,
                width=width,
                rows=len(store),
                fingerprint=store.fingerprint,
            )
            for (height, width), store in ordered
        ),
        source=source,
        receipt=receipt,
        fingerprint="",
    )
    manifest = manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint()})
    with writing_into(path):
        for (_, store), bucket in zip(ordered, manifest.buckets, strict=True):
            folder = path / bucket.folder
            shutil.rmtree(folder, ignore_errors=True)
            store.path.rename(folder)
        sync_folder(path)
        write_durably(path / BUCKETS_NAME, format_manifest(manifest))
    _remove_unnamed(path, manifest)
    return WrittenStore(BucketedStore.open(path, verify=False))


def _remove_unnamed(path: Path, manifest: BucketsManifest) -> None:
    """Remove what a new manifest does not name, and what killed imports have left; open maps of it
    stay valid.
    """
    named = {bucket.folder for bucket in manifest.buckets}
    for folder in path.iterdir():
        if folder.is_dir() and BUCKET_FOLDER.fullmatch(folder.name) and folder.name not in named:
            shutil.rmtree(folder, ignore_errors=True)
    for left in path.glob(".*.part"):  # by an import that was killed: one runs at a time
        left.unlink(missing_ok=True)


def refuse_plain_store(path: Path) -> None:
    """Raise UserError where the folder holds a store without buckets, which one with buckets does
    not replace.
    """
    if (path / MANIFEST_NAME).exists():
        raise UserError(
            f"{path} holds a store without buckets; choose another name, or remove that folder."
        )


def refuse_bucketed_store(path: Path) -> None:
    """Raise UserError for a folder that holds a store with buckets."""
    if (path / BUCKETS_NAME).exists():
        raise UserError(
            f"{path} holds a store with buckets; choose another name, or remove that folder."
        )
