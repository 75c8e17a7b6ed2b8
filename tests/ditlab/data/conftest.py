import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ditlab.home import Home
from support.datasets import writing

make_store = writing.make_store


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], bytes]:
    """Writes an array as an idx file, gzipped where the name says so; returns the idx bytes."""

    def write(path: Path, values: np.ndarray) -> bytes:
        header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
        content = header + values.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return content

    return write
