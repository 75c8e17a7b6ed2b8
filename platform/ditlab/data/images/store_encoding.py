"""Features of frozen encoders for a store that exists: a new store beside it, with columns added."""

from pathlib import Path
from typing import Any

from ditlab.data.block_imports.finishing import move_shards
from ditlab.data.images.captions import CAPTION
from ditlab.data.images.encoding import EncoderChoice, open_features
from ditlab.data.images.feature_columns import MEANING
from ditlab.data.images.finishing import EncodedParts, encoded_parts, finish_parts
from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.bucket_writer import place_buckets, refuse_plain_store
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore, holds_store
from ditlab.data.stores.finishing import finish_store
from ditlab.data.stores.manifest import Source
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.shards import refused
from ditlab.data.stores.store import Store
from ditlab.data.stores.written import WrittenStore
from ditlab.errors import UserError
from ditlab.storage.plain_files import MIB, read_plain

ATTACHMENT_BYTES = 512 * MIB
"""Most bytes of a file beside a store's shards: its tokeniser."""


def encode_store(
    store: AnyStore, encoders: EncoderChoice, tokens: int | None, name: str | None, request: ImportRequest[Any]
) -> WrittenStore:
    """Write a store of the same rows with the encoders' columns beside theirs, by blocks of rows.

    `tokens`: those of every row's `text`; None: those of the longest caption. A killed one goes on from its whole
    blocks. Raises UserError for a store without captions or images, or with such features, for encoders that do not
    fit, and for a folder that holds another kind of store.
    """
    _check_columns(store, encoders)
    if name is not None and folder_name(name) != name:
        raise UserError(f"--name={name} is no plain folder name; write {folder_name(name)}, and --out for the place.")
    path = request.out / (name or f"{store.name}-encoded")
    if path.resolve() == store.path.resolve():
        raise UserError(f"--name={path.name} is the store's own; name another one.")
    source = store.manifest.source.model_copy(update={"note": _note(store, encoders)})
    if isinstance(store, BucketedStore):
        refuse_plain_store(path)
        parts = {bucket.size: part for bucket, part in zip(store.manifest.buckets, store.parts, strict=True)}
        with encoded_parts(path, parts, encoders, tokens, request) as encoded:
            return _place_buckets(path, store, encoded, source)
    if holds_store(path) and isinstance(_there(path), BucketedStore):
        raise UserError(f"{path} holds a store with buckets; choose another name, or remove that folder.")
    with encoded_parts(path, {".": store}, encoders, tokens, request) as encoded:
        return _place_plain(path, store, encoded, source)


def _check_columns(store: AnyStore, encoders: EncoderChoice) -> None:
    if not encoders:
        raise UserError("nothing to encode with; give --encode-text, --encode-images, or both.")
    made = [*MEANING][:3] * bool(encoders.text) + [*MEANING][3:] * bool(encoders.image)
    if held := [name for name in made if name in store.columns]:
        raise UserError(f"{store.path} holds {', '.join(held)} already; encode the store that it was made from.")
    if encoders.text and CAPTION not in store.columns:
        raise UserError(
            f"--encode-text={encoders.text} needs captions, and {store.path} holds {', '.join(store.columns)}; leave "
            "it out, or import the data with captions."
        )
    image = store.columns.get("image")
    if encoders.image and (image is None or image.dtype != "uint8" or len(image.shape) != 3 or image.shape[0] != 3):
        held_image = "no image" if image is None else f"image {image.dtype} {image.shape}"
        raise UserError(
            f"--encode-images={encoders.image} needs RGB images of 8 bits, and {store.path} holds {held_image}; leave "
            "it out, or name another store."
        )
    open_features(encoders)


def _note(store: AnyStore, encoders: EncoderChoice) -> str:
    names = " and ".join(Path(place).name for place in (encoders.text, encoders.image) if place)
    note = f"features of {names} added to {store.name}"
    return f"{store.manifest.source.note}; {note}" if store.manifest.source.note else note


def _place_buckets(path: Path, store: BucketedStore, encoded: EncodedParts, source: Source) -> WrittenStore:
    manifest = store.manifest
    stores = finish_parts(encoded, source)
    sizes = {bucket.size: (bucket.height, bucket.width) for bucket in manifest.buckets}
    return place_buckets(
        path,
        {sizes[part]: each for part, each in stores.items()},
        name=path.name,
        description=manifest.description,
        source=source,
        facts=manifest.facts,
        notes=manifest.notes,
        files={name: read_plain(store.path / file, ATTACHMENT_BYTES) for name, file in manifest.files.items()},
    )


def _place_plain(path: Path, store: Store, encoded: EncodedParts, source: Source) -> WrittenStore:
    before = _there(path)
    manifest = store.manifest
    try:
        move_shards(encoded.shards("."), encoded.folder, path)
        finish_store(
            path,
            encoded.columns["."],
            encoded.shards("."),
            name=path.name,
            description=manifest.description,
            source=source,
            text=manifest.text,
            attachments={name: read_plain(store.path / name, ATTACHMENT_BYTES) for name in manifest.attachments},
        )
    except OSError as error:
        raise refused(path, error) from error
    written = Store.open(path, verify=False)
    if before is None:
        return WrittenStore(written, "written")
    return WrittenStore(written, "unchanged" if before.fingerprint == written.fingerprint else "replaced")


def _there(path: Path) -> AnyStore | None:
    from ditlab.data.stores.bucketed_store import open_store

    try:
        return open_store(path, verify=False)
    except UserError:
        return None
