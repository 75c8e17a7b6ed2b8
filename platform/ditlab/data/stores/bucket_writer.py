"""Writing bucketed stores: a store for each image size, the manifest last."""

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.importing import WrittenStore, WriteOutcome
from ditlab.data.stores.bucket_manifest import (
    BUCKETS_NAME,
    Bucket,
    BucketsManifest,
    buckets_fingerprint,
    merged_column,
    size_name,
)
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source
from ditlab.data.stores.manifest_parsing import read_record
from ditlab.errors import UserError
from ditlab.storage.files import sync_folder, write_durably

if TYPE_CHECKING:  # torch and pyarrow, which an importer's --help can do without
    from ditlab.data.stores.store import Store

PARTIAL = ".partial-"
"""How folders begin that hold what an import has not finished; the next import that ends well removes them."""
OURS = re.compile(rf"\d+x\d+-[0-9a-f]{{8}}|{re.escape(PARTIAL)}[0-9a-f]{{32}}")
"""All folders of a bucketed store."""


@dataclass(frozen=True)
class BucketPart:
    """The images of one size, as an importer hands them over."""

    height: int
    """Pixels."""
    width: int
    """Pixels."""
    columns: Mapping[str, Column]
    """In all parts the same but for sizes."""
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]
    """The rows, one at least: every column as (rows, *shape). Called once."""


def write_buckets(
    path: Path,
    parts: Sequence[BucketPart],
    *,
    name: str,
    description: str,
    source: Source,
    facts: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> WrittenStore:
    """Write a bucketed store, and tell whether it is new, differs from the one that lay there, or equals it.

    All buckets are written aside, then take folders that carry their contents' hash, and then the manifest takes the
    old one's place in a single rename: until that happens, and whatever ends the import, the old store stays whole.
    Only then do its folders go, and those that killed imports have left. A bucket that is there already stays, unless
    it is damaged. `files` are lists for people, by name; they are no part of the fingerprint. One import at a time.

    Raises UserError for a plain store in the folder, for what `StoreWriter` refuses, and where the disk refuses.
    """
    parts = sorted(parts, key=lambda part: (part.height * part.width, part.height))
    assert len({(part.height, part.width) for part in parts}) == len(parts) > 0, "one part for each size"
    refuse_plain_store(path)
    before = _manifest(path)
    aside = path / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        stores = [_write_part(part, aside, source) for part in parts]
        for column in stores[0].columns:
            merged_column([store.columns[column] for store in stores])  # asserts that they agree
        buckets = tuple(_bucket(part, store) for part, store in zip(parts, stores, strict=True))
        manifest = BucketsManifest(
            name=name,
            description=description,
            buckets=buckets,
            source=source,
            facts=dict(facts or {}),
            notes=tuple(notes),
            files={file: _hashed_name(file, content) for file, content in (files or {}).items()},
            fingerprint=buckets_fingerprint(buckets),
        )
        moved = [_move(store, path, bucket) for store, bucket in zip(stores, buckets, strict=True)]
        for file, content in (files or {}).items():
            write_durably(path / manifest.files[file], content)
        sync_folder(path)
        write_durably(path / BUCKETS_NAME, json.dumps(manifest.model_dump(mode="json"), indent=1).encode())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); free space there or choose another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists() and not any(path.iterdir()):
            path.rmdir()
    _remove_strays(path, manifest, before)
    return _imported(path, before, any(moved))


def refuse_plain_store(path: Path) -> None:
    """Raises UserError where the folder holds a store without buckets, which one with buckets does not replace."""
    if (path / MANIFEST_NAME).exists():
        raise UserError(f"{path} holds a store without buckets; choose another name, or remove that folder.")


def _imported(path: Path, before: BucketsManifest | None, moved: bool) -> WrittenStore:
    from ditlab.data.stores.bucketed_store import BucketedStore

    store = BucketedStore.open(path, verify=False)
    outcome: WriteOutcome = "written" if before is None else "replaced"
    if before is not None and before.fingerprint == store.fingerprint and not moved:
        outcome = "unchanged"
    return WrittenStore(store, outcome)


def _manifest(path: Path) -> BucketsManifest | None:
    """That of the store which lies there; None where none does, or none that can be read."""
    try:
        return read_record(path / BUCKETS_NAME, BucketsManifest)
    except UserError:
        return None


def _write_part(part: BucketPart, aside: Path, source: Source) -> "Store":
    from ditlab.data.stores.store import Store
    from ditlab.data.stores.writer import StoreWriter

    size = size_name(part.height, part.width)
    with StoreWriter(aside / size, part.columns, name=size, source=source) as writer:
        for batch in part.batches():
            writer.append(batch)
    return Store.open(aside / size, verify=False)


def _bucket(part: BucketPart, store: "Store") -> Bucket:
    return Bucket(
        folder=f"{store.name}-{store.fingerprint[:8]}",
        height=part.height,
        width=part.width,
        rows=len(store),
        fingerprint=store.fingerprint,
    )


def _move(store: "Store", path: Path, bucket: Bucket) -> bool:
    """Give a store its folder, unless that holds the same one intact; tells whether it did."""
    from ditlab.data.stores.store import Store

    folder = path / bucket.folder
    try:
        if Store.open(folder).fingerprint == bucket.fingerprint:
            return False
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
    store.path.rename(folder)
    return True


def _hashed_name(file: str, content: bytes) -> str:
    """`skipped-1a2b3c4d.txt`, so that a list which changes leaves the old store's in place."""
    name = PurePath(file)
    return f"{name.stem}-{hashlib.sha256(content).hexdigest()[:8]}{name.suffix}"


def _remove_strays(path: Path, manifest: BucketsManifest, before: BucketsManifest | None) -> None:
    """What the new manifest does not name: open maps of it stay valid."""
    named = {bucket.folder for bucket in manifest.buckets} | set(manifest.files.values())
    for folder in path.iterdir():
        if folder.is_dir() and OURS.fullmatch(folder.name) and folder.name not in named:
            shutil.rmtree(folder, ignore_errors=True)
    for file in set(before.files.values() if before else ()) - named:
        (path / file).unlink(missing_ok=True)
