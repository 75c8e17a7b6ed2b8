import gzip
import struct

import numpy as np
import pytest

from ditlab.home import Home
from support.datasets import writing

make_store = writing.make_store


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture(scope="module")
def module_home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def write_idx():
    """Writes an array as an idx file, gzipped where the name says so; returns the idx bytes."""

    def write(path, values):
        header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
        content = header + values.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return content

    return write
