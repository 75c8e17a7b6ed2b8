"""Stores that a test writes batch by batch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ditlab.data.stores.manifest import Column, Source, StoreManifest, TextFacts
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import write_batches
from ditlab.data.stores.writing import write_store

MakeStore = Callable[..., Store]


class StoreWriter:
    """Store of the batches that the body of a `with` appends, as `write_batches` writes it when the
    body ends.
    """

    def __init__(self, path: Path, columns: Mapping[str, Column], **options: Any) -> None:
        self._path, self._columns, self._options = path, columns, options
        self._batches: list[Mapping[str, Any]] = []
        self.text: TextFacts | None = None
        self.manifest: StoreManifest | None = None

    def append(self, batch: Mapping[str, Any]) -> None:
        self._batches.append(batch)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.manifest = write_batches(
                self._path, self._columns, self._batches, text=self.text, **self._options
            )


def written(
    path: Path, columns: Mapping[str, Column], *batches: Mapping[str, Any], **options: Any
) -> Store:
    """Write a store of batches, and open it."""
    options = {"name": path.name, "source": Source(kind="test"), **options}
    write_batches(path, columns, batches, **options)
    return Store.open(path)


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Writes a store of random 3x4 images and classes 0 to 4; the same rows whenever `seed` is the
    same.
    """

    def make(
        rows: int = 100, name: str = "random", seed: int = 0, batch: int = 17, **options: int
    ) -> Store:
        generator = np.random.default_rng(seed)
        images = generator.integers(0, 256, (rows, 1, 3, 4), dtype=np.uint8)
        labels = generator.integers(0, 5, rows)
        columns = {
            "image": Column(dtype="uint8", shape=(1, 3, 4), value_range=(0, 255)),
            "label": Column(dtype="int64", num_classes=5),
        }
        parts = [slice(start, start + batch) for start in range(0, rows, batch)]
        batches = [{"image": images[part], "label": labels[part]} for part in parts]
        return written(tmp_path / name, columns, *batches, **options)

    return make


def image_store(folder: Path, images: np.ndarray, **classes: np.ndarray) -> dict[str, Any]:
    """Write a store of images, uint8 (num, channels, height, width), with class indices by column;
    return it as a data section.
    """
    columns = {"image": Column(dtype="uint8", shape=images.shape[1:], value_range=(0, 255))}
    for name, values in classes.items():
        columns[name] = Column(dtype="int64", num_classes=int(values.max()) + 1)
    batches = [{"image": images, **classes}]
    source = Source(kind="made")
    write_store(folder, columns, batches, name="made", description="", source=source)
    return {"kind": "arrow", "path": str(folder)}
