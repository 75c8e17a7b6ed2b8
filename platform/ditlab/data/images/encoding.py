"""Features of frozen encoders for the rows of a store, by blocks of rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ditlab.data.block_imports.listing import SourceFile, list_source
from ditlab.data.block_imports.plan import BlockNumbers, ImportPlan, InputBlock, block_bytes
from ditlab.data.block_imports.receipt import BlockReceipt
from ditlab.data.images.aspect_buckets import ImageSize
from ditlab.data.images.captions import CAPTION
from ditlab.data.images.feature_columns import FeatureColumns
from ditlab.data.stores.manifest import MANIFEST_NAME, Column
from ditlab.data.stores.shards import write_shards

if TYPE_CHECKING:  # torch, which an importer's --help can do without
    from ditlab.data.stores.store import Store

BATCH_BYTES = 4 * 2**20
"""Bytes of pixels that are encoded at a time, unless one image has more."""
NO_VALUES = np.zeros((0, 0), np.uint8)


@dataclass(frozen=True)
class EncoderChoice:
    """Encoders of captions and images, each a folder or a name on the hub; None for none."""

    text: str | None
    image: str | None
    length: int
    """Most tokens of a caption."""
    patch: int | None
    """Side of the image encoder's patches in pixels; None: any."""

    def __bool__(self) -> bool:
        return self.text is not None or self.image is not None

    @property
    def files(self) -> dict[str, list[tuple[str, int, str]]]:
        """Files of encoders that lie in folders, by which another checkpoint is told from this one."""
        places = [place for place in (self.text, self.image) if place and Path(place).is_dir()]
        return {place: [(f.name, f.size, f.stamp) for f in list_source("encoder", place).files] for place in places}


@lru_cache(maxsize=1)
def open_features(encoders: EncoderChoice) -> FeatureColumns:
    """Open encoders once in a process. Raises UserError as `FeatureColumns.open` does."""
    return FeatureColumns.open(encoders.text, encoders.image, encoders.length, encoders.patch)


@dataclass(frozen=True)
class EncodingRules:
    """Rules by which a block of a store's rows gets the encoders' columns beside its own."""

    encoders: EncoderChoice
    tokens: int
    """Tokens of every row's `text`."""
    uses_gpu: ClassVar[bool] = True

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Encode a block's rows, and write them with all their columns.

        Raises UserError for a store that was altered and for features that are not finite, and OSError as the disk
        does.
        """
        from ditlab.data.stores.store import Store

        assert block.stop is not None, "a block of rows has an end"
        store = Store.open(block.files[0].path.parent, verify=False)
        store.start_verifying(at_once=False)
        features = self.features()
        part = folder / block.kind
        part.mkdir(parents=True, exist_ok=True)
        batches = encoded_rows(store, features, range(block.start, block.stop))
        shards = write_shards(part, block.prefix, encoded_columns(store, features), batches)
        return BlockReceipt(block=block.number, rows=block.stop - block.start, parts={block.kind: tuple(shards)})

    def features(self) -> FeatureColumns:
        """Return the open encoders."""
        features = open_features(self.encoders)
        features.tokens = self.tokens
        return features


def encoding_plan(parts: "Mapping[str, Store]", encoders: EncoderChoice, tokens: int) -> ImportPlan:
    """Cut the rows of stores, by the folder that each is written to (`48x80`, `.`), into blocks."""
    numbers = BlockNumbers()
    most = block_bytes(sum(store.size for store in parts.values()))
    for part, store in sorted(parts.items()):
        row_bytes = max(1, store.size // len(store))
        rows = max(1, most // row_bytes)
        for start in range(0, len(store), rows):
            stop = min(start + rows, len(store))
            size = row_bytes * (stop - start)
            file = SourceFile(str(store.path), MANIFEST_NAME, size, f"sha256:{store.fingerprint}")
            numbers.add([file], part, start=start, stop=stop, first_row=start)
    chosen = {"text": encoders.text, "image": encoders.image, "patch": encoders.patch, "tokens": tokens}
    return ImportPlan.of(
        "encode", numbers.blocks, chosen | {"files": encoders.files}, sum(len(store) for store in parts.values())
    )


def measure_captions(stores: "Iterable[Store]", features: FeatureColumns) -> int:
    """Return the tokens of the longest caption of some stores; 0 without a text encoder."""

    def captions() -> Iterator[np.ndarray]:
        for store in stores:
            for rows in _row_batches(store, range(len(store)), (CAPTION,)):
                yield store.gather(CAPTION, rows).numpy()

    features.measure(captions())
    return features.tokens


def encoded_columns(store: "Store", features: FeatureColumns) -> dict[str, Column]:
    """Return a store's columns, and those of the encoders."""
    own = {
        name: Column.model_validate(column.model_dump(exclude={"statistics", "sha256"}))
        for name, column in store.columns.items()
    }
    size = ImageSize(*store.columns["image"].shape[1:]) if "image" in store.columns else ImageSize(0, 0)
    return {**own, **features.columns(size)}


def encoded_rows(store: "Store", features: FeatureColumns, rows: range) -> Iterator[Mapping[str, np.ndarray]]:
    """Iterate over rows with all columns, some at a time. Raises UserError for features that are not finite."""
    for numbers in _row_batches(store, rows, tuple(store.columns)):
        batch = {name: store.gather(name, numbers).numpy() for name in store.columns}
        yield batch | features.compute(batch.get("image", NO_VALUES), batch.get(CAPTION, NO_VALUES))


def _row_batches(store: "Store", rows: range, columns: Iterable[str]) -> Iterator[np.ndarray]:
    row_bytes = sum(store.columns[name].row_bytes for name in columns)
    at_once = max(1, BATCH_BYTES // max(1, row_bytes))
    for start in range(rows.start, rows.stop, at_once):
        yield np.arange(start, min(start + at_once, rows.stop))
