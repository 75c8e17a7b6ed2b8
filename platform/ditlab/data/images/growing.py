"""Growing a store: another import adds images and classes to it, in a store that shares its shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.images.captions import LABEL
from ditlab.data.named_stores import open_named_store, pointed_folder
from ditlab.data.stores.bucketed_store import BucketedStore, holds_store
from ditlab.data.stores.row_changes import CAPTION
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.importing import CAPTION_ORIGINS, ImagesOptions
from ditlab.spec.uris import is_uri

OF_SIZE = ("sizes", "resolution", "patch", "step", "min_side", "max_side", "fit", "grey", "caption_length")
"""Options that all rows of a store share."""
OF_SOURCE = ("caption_from", "label_from", "label_column", "image_column", "caption_column", "missing_caption",
             "unreadable", "max_pixels")  # fmt: skip
"""Options that another source of the store may have otherwise."""
READ_AT_ONCE = 64
"""Rows of a store that are read at a time."""


def kept_options(options: ImagesOptions, resolution: int) -> dict[str, str | int | bool | None]:
    """Return the options that a store of a resolution keeps, to go on with; a file of captions is its source's own."""
    kept = options.model_dump(mode="json", include={*OF_SIZE, *OF_SOURCE}) | {"resolution": resolution}
    return kept if kept["caption_from"] in CAPTION_ORIGINS else kept | {"caption_from": None}


def store_to_grow(options: ImagesOptions, home: Home) -> BucketedStore:
    """Open the store that images are added to.

    Raises UserError as `named_stores.open_named_store`, for a URI, for a store that was not imported from images or
    holds more than they give, and for one whose name means another store by now.
    """
    into = options.into or ""
    if is_uri(into):
        raise UserError(f"--into={into} is a URI; add to the store on this machine, and upload it again.")
    store = open_named_store("--into", into, home)
    others = sorted(store.columns.keys() - {"image", CAPTION, LABEL})
    if not store.manifest.source.options or not isinstance(store, BucketedStore) or others:
        held = f"holds {', '.join(others)}" if others else "was not imported from images"
        raise UserError(f"--into={into}: {store.path} {held}; name a store of `ditlab data import images`.")
    meant = pointed_folder(store.path.with_name(store.name))
    if not options.name and meant != store.path and holds_store(meant):
        raise UserError(f"--into={into}: {store.name} means {meant.name} by now; give the larger store a --name.")
    return store


def continued_options(options: ImagesOptions, store: BucketedStore) -> ImagesOptions:
    """Return options for more images of a store: its own, but for those that were given.

    Raises UserError for options of other sizes than its images have, and for encoders.
    """
    kept: dict[str, Any] = dict(store.manifest.source.options)
    given = {name: getattr(options, name) for name in options.model_fields_set}
    before = ImagesOptions.model_validate({**kept, "source": options.source})
    for name in OF_SIZE:
        if name in given and given[name] != (theirs := getattr(before, name)):
            flag, (new, old) = name.replace("_", "-"), (str(each).strip("(,)") for each in (given[name], theirs))
            raise UserError(
                f"--{flag}={new}: the images of --into={options.into} were imported with {old}; leave --{flag} out, or "
                "--into."
            )
    for name in ("encode_text", "encode_images"):
        if given.get(name):
            raise UserError(f"--{name.replace('_', '-')}={given[name]} adds no rows; give it to `ditlab data encode`.")
    if "label_from" in given or "label_column" in given:
        kept["label_from"] = kept["label_column"] = None
    return ImagesOptions.model_validate({**kept, **given})


def all_classes(store: BucketedStore, classes: Sequence[str], has_captions: bool, into: str) -> list[str]:
    """Return a store's classes under their numbers, and then those that are new.

    Raises UserError where one has classes, or captions, and the other has none.
    """
    own = store.columns[LABEL].names if LABEL in store.columns else ()
    for what, there, here, remedy in (
        ("classes", bool(own), bool(classes), "--label-from or --label-column"),
        ("captions", CAPTION in store.columns, has_captions, "--caption-from"),
    ):
        if there != here:
            has, lacks = ("it has", "the new images have none") if there else ("the new images have", "it has none")
            raise UserError(f"--into={into}: {has} {what}, and {lacks}; set {remedy} so that both agree.")
    return [*own, *(name for name in classes if name not in own)]


def row_digest(row: Mapping[str, np.ndarray]) -> bytes:
    """Return a hash of a row, (1, *shape) of each column."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(row):
        digest.update(repr((name, row[name].shape)).encode() + np.ascontiguousarray(row[name]).tobytes())
    return digest.digest()


@lru_cache(maxsize=1)  # once a process
def known_rows(path: Path) -> frozenset[bytes]:
    """Return the hashes of all rows of a bucketed store. Raises UserError for one that was altered."""
    found = set()
    for part in BucketedStore.open(path).parts:
        for start in range(0, len(part), READ_AT_ONCE):
            rows = np.arange(start, min(start + READ_AT_ONCE, len(part)))
            columns = {name: part.gather(name, rows).numpy() for name in part.columns}
            for place in range(len(rows)):
                found.add(row_digest({name: held[place, None] for name, held in columns.items()}))
    return frozenset(found)
