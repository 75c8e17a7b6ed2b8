"""Features of frozen encoders as columns, computed by blocks of rows for a store beside another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ditlab.analysis.opened_run import default_device
from ditlab.api.imports import import_request, published
from ditlab.cluster.session import cluster_address
from ditlab.data.images.captions import decode_captions
from ditlab.data.import_blocks import (
    BlockReceipt,
    InputBlock,
    ProcessExecutor,
    block_bytes,
    finish_import,
    finish_parts,
    imported_blocks,
)
from ditlab.data.importing import ImportRequest
from ditlab.data.named_stores import open_named_store
from ditlab.data.source_files import SourceFile, list_source
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Columns, folder_name
from ditlab.data.stores.row_changes import CAPTION
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import (
    WrittenStore,
    place_buckets,
    refuse_bucketed_store,
    refuse_plain_store,
)
from ditlab.encoders.autoencoder import FrozenAutoencoder
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.encoders import LATENTS
from ditlab.spec.uris import is_uri
from ditlab_models.contract import Spec

MOST_TOKENS = 512
"""Most tokens of a caption whose features are stored, unless another number is asked for."""
BATCH_BYTES = 4 * 2**20
"""Bytes of pixels that are encoded at a time, unless one image has more."""
MEANING = {
    "text": ("feature", "token of the caption, feature; 0 behind its end"),
    "text_mask": ("", "true for tokens of the caption"),
    "text_pooled": ("feature", "of the caption's last token"),
    "image_features": ("feature", "patch (row by row), feature"),
    LATENTS: ("", "channel (means, then log-variances from -30 to 20), row, column"),
}
"""Unit and description by column."""
Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of a row, by column."""


@dataclass(frozen=True)
class EncoderChoice:
    """Encoders of captions and images, each a folder or a name on the hub; None for none."""

    text: str | None
    image: str | None
    length: int
    """Most tokens of a caption."""
    patch: int | None
    """Side of the image encoder's patches in pixels; None: any."""
    autoencoder: str | None = None
    """AutoencoderKL whose posterior of images is kept; None for none."""

    @property
    def places(self) -> list[str]:
        """Their folders, or names on the hub."""
        return [place for place in (self.text, self.image, self.autoencoder) if place]

    @property
    def made(self) -> tuple[str, ...]:
        """Columns that they make."""
        found = (*MEANING,)[:3] * bool(self.text) + ("image_features",) * bool(self.image)
        return found + (LATENTS,) * bool(self.autoencoder)


@lru_cache(maxsize=1)
def open_features(
    encoders: EncoderChoice,
) -> tuple[FrozenTextEncoder | None, FrozenImageEncoder | None]:
    """Open the encoders once in a process, on a GPU if any, in float32. Raises UserError for one
    that does not fit.
    """
    device = default_device()
    text = image = None
    if encoders.text:
        text = FrozenTextEncoder(
            encoders.text, None, encoders.length, device, option="--encode-text"
        )
    if encoders.image:
        image = FrozenImageEncoder(
            encoders.image, None, encoders.patch, device, option="--encode-images"
        )
    return text, image


@lru_cache(maxsize=1)
def open_autoencoder(place: str) -> FrozenAutoencoder:
    """Open an autoencoder once in a process, on a GPU if any. Raises UserError as its network
    does.
    """
    opened = FrozenAutoencoder(place, default_device(), "--autoencoder")
    _ = opened.network
    return opened


def text_shapes(encoder: FrozenTextEncoder, longest: int) -> Shapes:
    """Return the columns of captions of at most `longest` tokens."""
    return {
        "text": ("float16", (longest, encoder.width)),
        "text_mask": ("bool", (longest,)),
        "text_pooled": ("float32", (encoder.width,)),
    }


def text_columns(
    encoder: FrozenTextEncoder, captions: Sequence[str], longest: int
) -> dict[str, np.ndarray]:
    """Compute columns of captions, at most `longest` tokens each. Raises UserError for features
    that are not finite.
    """
    features = encoder.encode(captions)
    behind = longest - features["text"].shape[1]
    features["text"] = pad(features["text"], (0, 0, 0, behind))
    features["text_mask"] = pad(features["text_mask"], (0, behind))
    return _columns(features, text_shapes(encoder, longest), "text encoder")


def image_shapes(encoder: FrozenImageEncoder, height: int, width: int) -> Shapes:
    """Return the columns of images of a size in pixels."""
    num_patches = (height // encoder.patch) * (width // encoder.patch)
    return {"image_features": ("float16", (num_patches, encoder.width))}


def image_columns(encoder: FrozenImageEncoder, images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the column of images (num, 3, H, W) uint8. Raises UserError for a feature not finite
    in float16.
    """
    features = encoder.encode(torch.from_numpy(images).float().div(127.5).sub(1))
    return _columns(
        {"image_features": features}, image_shapes(encoder, *images.shape[2:]), "image encoder"
    )


def latent_shapes(encoder: FrozenAutoencoder, height: int, width: int) -> Shapes:
    """Return the column of latents of images of a size in pixels."""
    return {
        LATENTS: (
            "float32",
            (2 * encoder.channels, height // encoder.pixels, width // encoder.pixels),
        )
    }


def latent_columns(encoder: FrozenAutoencoder, images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the column of images (num, 3, H, W) uint8. Raises UserError for a latent that is not
    finite.
    """
    moments = encoder.encode(torch.from_numpy(images).float().div(127.5).sub(1))
    return _columns({LATENTS: moments}, latent_shapes(encoder, *images.shape[2:]), "autoencoder")


def _columns(features: dict[str, Tensor], shapes: Shapes, source: str) -> dict[str, np.ndarray]:
    columns = {}
    for name, (dtype, shape) in shapes.items():
        values = features[name].to(getattr(torch, dtype)).cpu()
        assert values.shape[1:] == shape, f"{name} {tuple(values.shape[1:])} is not {shape}"
        if not torch.isfinite(values).all():
            cause = "the checkpoint is damaged"
            if torch.isfinite(features[name]).all():
                cause = "they are beyond its range"
            raise UserError(
                f"the {source} gives {name} that is NaN or infinite in {dtype} ({cause}); name "
                "another checkpoint, or encode in the step (encoders.text, encoders.image)."
            )
        columns[name] = values.numpy()
    return columns


@dataclass(frozen=True)
class EncodingRules:
    """Rules by which rows get columns of encoders (`EncoderChoice.made`) beside their own."""

    encoders: EncoderChoice
    tokens: int
    """Tokens of every row's `text`."""
    uses_gpu: ClassVar[bool] = True

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Encode rows; write all their columns. Raises UserError for an altered store and features
        not finite.
        """
        assert block.stop is not None, "a block of rows has an end"
        store = Store.open(block.files[0].path.parent, verify=False)
        store.verifies_blocks = True

        text, image = open_features(self.encoders)

        def batches() -> Iterator[Mapping[str, np.ndarray]]:
            for rows in _row_batches(store, range(block.start, block.stop or 0), store.columns):
                batch = {name: store.gather(name, rows).numpy() for name in store.columns}
                if text:
                    batch |= text_columns(text, decode_captions(batch[CAPTION]), self.tokens)
                place = self.encoders.autoencoder
                if place:
                    batch |= latent_columns(open_autoencoder(place), batch["image"])
                if image:
                    batch |= image_columns(image, batch["image"])
                yield batch

        part = folder / block.kind
        part.mkdir(parents=True, exist_ok=True)
        shards = write_shards(part, block.prefix, self.columns(store.columns), batches())
        return BlockReceipt(
            block=block.number, rows=block.stop - block.start, parts={block.kind: tuple(shards)}
        )

    def columns(self, own: Columns) -> dict[str, Column]:
        """Return a store's columns, and those of the encoders."""
        text, image = open_features(self.encoders)
        shapes = text_shapes(text, self.tokens) if text else {}
        made_by: dict[str, Any] = {}
        place = self.encoders.autoencoder
        if place:
            opened = open_autoencoder(place)
            shapes |= latent_shapes(opened, *own["image"].shape[1:])
            factors = {"scaling_factor": opened.scaling_factor, "shift_factor": opened.shift_factor}
            made_by[LATENTS] = {
                "autoencoder": {"source": place, "sha256": opened.sha256, **factors}
            }
        if image:
            shapes |= image_shapes(image, *own["image"].shape[1:])
        described = {
            name: {
                "dtype": dtype,
                "shape": shape,
                "unit": MEANING[name][0],
                "description": MEANING[name][1],
            }
            | made_by.get(name, {})
            for name, (dtype, shape) in shapes.items()
        }
        kept = {
            name: column.model_dump(exclude={"statistics", "sha256"})
            for name, column in own.items()
        }
        return {name: Column.model_validate(column) for name, column in (kept | described).items()}


def _row_batches(store: Store, rows: range, columns: Iterable[str]) -> Iterator[np.ndarray]:
    row_bytes = sum(store.columns[name].row_bytes for name in columns)
    at_once = max(1, BATCH_BYTES // max(1, row_bytes))
    for start in range(rows.start, rows.stop, at_once):
        yield np.arange(start, min(start + at_once, rows.stop))


def _row_blocks(parts: Mapping[str, Store]) -> list[InputBlock]:
    """Cut the rows of stores into blocks, by part."""
    blocks: list[InputBlock] = []
    most = block_bytes(sum(store.size for store in parts.values()))
    for part, store in sorted(parts.items()):
        row_bytes = max(1, store.size // len(store))
        rows_a_block = max(1, most // row_bytes)
        for start in range(0, len(store), rows_a_block):
            stop = min(start + rows_a_block, len(store))
            size = row_bytes * (stop - start)
            file = SourceFile(str(store.path), MANIFEST_NAME, size, f"sha256:{store.fingerprint}")
            blocks.append(InputBlock(len(blocks), (file,), part, start, stop, start))
    return blocks


def encode_store(
    store: str | Path,
    encode_text: str | None = None,
    encode_images: str | None = None,
    *,
    autoencoder: str | None = None,
    tokens: int | None = None,
    patch: int | None = None,
    name: str | None = None,
    out: Path | None = None,
    address: str | None = None,
    progress: Progress = ignore_progress,
    warn: Callable[[str], None] = lambda message: None,
    replace: bool = False,
) -> WrittenStore:
    """Write a store of the same rows with features of frozen encoders beside its columns.

    Args:
        store: a store's folder, or the name of one under DITLAB_HOME/stores.
        encode_text: encoder of captions, a folder or a name on the Hugging Face hub (Qwen3).
        encode_images: encoder of images (DINOv3).
        autoencoder: AutoencoderKL as diffusers saves it, a folder or hf://OWNER/NAME@REVISION.
        tokens: tokens of every row's text; None: those of the longest caption.
        patch: side of the image encoder's patches that is asked for; None: any.
        name: name of the new store; None: the store's with `-encoded`.
        out, address, progress, warn, replace: as of `import_data`, whose work GPUs of the cluster
            may share.

    Raises UserError for a store, an encoder or a folder that does not fit.
    """
    if is_uri(str(store)):
        raise UserError(
            f"STORE={store} is a URI; name a store's folder, on a disk that all nodes share."
        )
    opened = open_named_store("STORE", str(store), Home.from_environment().ensure())
    encoders = EncoderChoice(encode_text, encode_images, tokens or MOST_TOKENS, patch, autoencoder)
    with import_request(
        out, cluster_address(address), str(opened.path), Spec(), progress, warn
    ) as request:
        (encoded,) = published(
            [encode_rows(opened, encoders, tokens, name, request)], request, replace, warn
        )
        return encoded


def encode_rows(
    store: AnyStore,
    encoders: EncoderChoice,
    tokens: int | None,
    name: str | None,
    request: ImportRequest[Any],
) -> WrittenStore:
    """Write a store of the same rows with the encoders' columns beside theirs, by blocks of rows.

    `tokens`: those of every row's `text`; None: those of the longest caption. Raises UserError for
    a store without captions or images, or with such features, for encoders that do not fit, and for
    a folder that holds another kind of store.
    """
    _check_columns(encoders, store)
    open_features(encoders)
    if encoders.autoencoder:
        _check_sides(open_autoencoder(encoders.autoencoder), store)
    path = _place(store, name, request.out)
    manifest = store.manifest
    source = manifest.source.model_copy(update={"note": _note(encoders, store)})
    facts: dict[str, Any] = {
        "description": manifest.description,
        "source": source,
        "receipt": manifest.receipt,
    }
    if isinstance(store, BucketedStore):
        parts = store.by_size
        refuse_plain_store(path)
    else:
        parts = {".": store}
        refuse_bucketed_store(path)
    rules = EncodingRules(encoders, tokens or _longest_caption(encoders, parts, request))
    columns = {part: rules.columns(each.columns) for part, each in parts.items()}
    with imported_blocks(
        path,
        "encode",
        _row_blocks(parts),
        _described(rules),
        rules,
        request.executor or ProcessExecutor(1, "encodes"),
        request.progress,
        "encoding",
    ) as (folder, receipts):
        attachments = {part: _attachments(each) for part, each in parts.items()}
        if isinstance(store, BucketedStore):
            stores = finish_parts(folder, receipts, columns, source, attachments)
            sizes = {
                (bucket.height, bucket.width): bucket.size for bucket in store.manifest.buckets
            }
            return place_buckets(
                path, {size: stores[part] for size, part in sizes.items()}, name=path.name, **facts
            )
        return finish_import(
            path,
            folder,
            receipts,
            columns["."],
            text=manifest.text,
            attachments=attachments["."],
            **facts,
        )


def _attachments(store: Store) -> dict[str, bytes]:
    """Return the attachments of a store of the same rows: its tokeniser, and its duplicates."""
    return {name: (store.path / name).read_bytes() for name in store.manifest.attachments}


def _place(store: AnyStore, name: str | None, out: Path) -> Path:
    """Return the folder of the new store in `out`. Raises UserError for a name that is none of a
    folder, and for the store's own.
    """
    if name is not None and folder_name(name) != name:
        raise UserError(
            f"--name={name} is no plain folder name; write {folder_name(name)}, and --out for "
            "the place."
        )
    path = out / (name or f"{store.name}-encoded")
    if path.name == store.name and path.parent.parent.resolve() == store.path.parent.resolve():
        raise UserError(f"--name={path.name} is the store's own; name another one.")
    return path


def _note(encoders: EncoderChoice, store: AnyStore) -> str:
    """Return the note on the new store's source: that of the store, and what was added."""
    names = " and ".join(Path(place).name for place in encoders.places)
    what = "latents" if encoders.made == (LATENTS,) else "features"
    added = f"{what} of {names} added to {store.name}"
    before = store.manifest.source.note
    return f"{before}; {added}" if before else added


def _longest_caption(
    encoders: EncoderChoice, parts: Mapping[str, Store], request: ImportRequest[Any]
) -> int:
    """Return the tokens of the longest caption; 0 without an encoder of captions."""
    text, _ = open_features(encoders)
    if text is None:
        return 0
    request.progress("reading captions", 0, None, "")
    lengths = []
    for store in parts.values():
        for rows in _row_batches(store, range(len(store)), (CAPTION,)):
            captions = decode_captions(store.gather(CAPTION, rows).numpy())
            lengths.append(max(text.num_tokens(captions)))
    return max(lengths)


def _described(rules: EncodingRules) -> dict[str, Any]:
    """Return all that changes the features beside the rows, as values of JSON."""
    encoders = rules.encoders
    folders = [place for place in encoders.places if Path(place).is_dir()]
    files = {
        place: [(f.name, f.size, f.stamp) for f in list_source(place) if not f.set_aside]
        for place in folders
    }
    chosen = {
        "text": encoders.text,
        "image": encoders.image,
        "patch": encoders.patch,
        "tokens": rules.tokens,
    }
    if encoders.autoencoder:
        chosen["autoencoder"] = encoders.autoencoder
    return chosen | {"files": files}


def _check_columns(encoders: EncoderChoice, store: AnyStore) -> None:
    """Raise UserError for a store that lacks what the encoders read, or holds what they make."""
    if not encoders.made:
        raise UserError(
            "nothing to encode with; give --encode-text, --encode-images or --autoencoder."
        )
    held = [name for name in encoders.made if name in store.columns]
    if held:
        raise UserError(
            f"{store.path} holds {', '.join(held)} already; encode the store that it was made from."
        )
    if encoders.text and CAPTION not in store.columns:
        raise UserError(
            f"--encode-text={encoders.text} needs captions, and {store.path} holds "
            f"{', '.join(store.columns)}; leave it out, or import the data with captions."
        )
    image = store.columns.get("image")
    if (
        image is not None
        and image.dtype == "uint8"
        and len(image.shape) == 3
        and image.shape[0] == 3
    ):
        return
    held_image = "no image" if image is None else f"image {image.dtype} {image.shape}"
    for option, place in {
        "--encode-images": encoders.image,
        "--autoencoder": encoders.autoencoder,
    }.items():
        if place:
            raise UserError(
                f"{option}={place} needs RGB images of 8 bits, and {store.path} holds "
                f"{held_image}; leave it out, or name another store."
            )


def _check_sides(autoencoder: FrozenAutoencoder, store: AnyStore) -> None:
    """Raise UserError for images whose sides are no multiples of what the autoencoder makes one
    latent of.
    """
    for part in store.parts:
        height, width = part.columns["image"].shape[1:]
        if height % autoencoder.pixels or width % autoencoder.pixels:
            raise UserError(
                f"{autoencoder.name} makes a latent of {autoencoder.pixels} x "
                f"{autoencoder.pixels} pixels, which do not tile the {height} x {width} of "
                f"{store.path}; import the data with multiples of {autoencoder.pixels} "
                "(--resolution)."
            )
