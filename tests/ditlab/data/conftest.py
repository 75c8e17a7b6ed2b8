import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.store import Store
from ditlab.home import Home
from support.datasets.writing import StoreWriter

MakeStore = Callable[..., Store]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Writes a store of random 3x4 images and classes 0 to 4; the same rows whenever `seed` is the same."""

    def make(rows: int = 100, name: str = "random", seed: int = 0, batch: int = 17, **options: int) -> Store:
        generator = np.random.default_rng(seed)
        images = generator.integers(0, 256, (rows, 1, 3, 4), dtype=np.uint8)
        labels = generator.integers(0, 5, rows)
        columns = {
            "image": Column(dtype="uint8", shape=(1, 3, 4), value_range=(0, 255)),
            "label": Column(dtype="int64", num_classes=5),
        }
        with StoreWriter(
            tmp_path / name, columns, name=Path(name).name, source=Source(kind="test"), **options
        ) as writer:
            for start in range(0, rows, batch):
                part = slice(start, start + batch)
                writer.append({"image": images[part], "label": labels[part]})
        return Store.open(tmp_path / name)

    return make


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], bytes]:
    """Writes an array as an idx file, gzipped where the name says so; returns the idx bytes."""

    def write(path: Path, values: np.ndarray) -> bytes:
        header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
        content = header + values.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return content

    return write
