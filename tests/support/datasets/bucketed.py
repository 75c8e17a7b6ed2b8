"""Small bucketed stores whose rows hold their own numbers."""

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writing import PARTIAL, WrittenStore, place_buckets, refuse_plain_store
from support.datasets.writing import written

Sizes = Mapping[tuple[int, int], int]
"""Rows by (height, width)."""
SIZES: Sizes = {(8, 12): 23, (8, 8): 40, (16, 4): 9}
SMALL_PIXELHDM = {
    "family": "pixelhdm",
    "width": 32,
    "pixel_width": 4,
    "patch_size": 4,
    "patch_depth": 1,
    "pixel_depth": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "mrope_widths": [4, 2, 2],
    "bottleneck_width": 8,
    "time_width": 8,
    "max_resolution": 16,
    "text_encoder": "learned",
    "text_length": 4,
    "text_depth": 1,
}
"""A network of images of 4 to 16 pixels, and of these captions."""
CLASSES = ("even", "odd")
CAPTIONS = np.array([list(name.encode().ljust(4, b"\0")) for name in CLASSES], np.uint8)


@dataclass(frozen=True)
class BucketPart:
    """Images of one size to be written as a bucket."""

    height: int
    width: int
    columns: Mapping[str, Column]
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]


def write_buckets(
    path: Path, parts: Sequence[BucketPart], *, source: Source, **about: object
) -> WrittenStore:
    """Write stores aside and place them as a bucketed store, as importers do."""
    refuse_plain_store(path)
    aside = path / f"{PARTIAL}{uuid.uuid4().hex}"
    stores = {}
    try:
        for each in parts:
            size = f"{each.height}x{each.width}"
            stores[each.height, each.width] = written(
                aside / size, each.columns, *each.batches(), source=source
            )
        return place_buckets(path, stores, source=source, **about)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists() and not any(path.iterdir()):
            path.rmdir()


def part(height: int, width: int, rows: int, seed: int = 0) -> BucketPart:
    """Rows of a bucket in batches of seven. `number` is a row's number in the bucket, `kind` and
    `caption` say whether that is odd, and the first `number % 4 + 1` of the `words` (as many as the
    image is wide) are 1."""
    pixels = np.random.default_rng((seed, height, width)).integers(
        0, 256, (rows, 3, height, width), dtype=np.uint8
    )
    number = np.arange(rows)
    content = {
        "image": pixels,
        "words": (np.arange(width) <= number[:, None] % 4).astype(np.float16),
        "number": number,
        "caption": CAPTIONS[number % 2],
        "kind": number % 2,
    }
    columns = {
        "image": Column(dtype="uint8", shape=(3, height, width), value_range=(0, 255)),
        "words": Column(dtype="float16", shape=(width,)),
        "number": Column(dtype="int64"),
        "caption": Column(dtype="uint8", shape=(4,), num_classes=256),
        "kind": Column(dtype="int64", num_classes=2, names=CLASSES),
    }

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, rows, 7):
            yield {name: values[start : start + 7] for name, values in content.items()}

    return BucketPart(height, width, columns, batches)


def write(path: Path, sizes: Sizes = SIZES, seed: int = 0, **about: object) -> WrittenStore:
    parts = [part(height, width, rows, seed) for (height, width), rows in sizes.items()]
    return write_buckets(
        path, parts, name=path.name, description="d", source=Source(kind="test"), **about
    )


def bucketed(path: Path, sizes: Sizes = SIZES, seed: int = 0) -> BucketedStore:
    store = write(path, sizes, seed).store
    assert isinstance(store, BucketedStore)
    return store
