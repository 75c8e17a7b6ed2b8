"""Shards of a stranger, for which their manifest vouches: no Arrow files, cut ones, other rows than
it says.
"""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

from ditlab.data.stores.blocks import arrow_schema, read_block
from ditlab.data.stores.manifest import MANIFEST_NAME, Column
from ditlab.data.stores.store import Store
from support.damage import bit_flips, refused
from support.datasets.manifests import edit_manifest
from support.datasets.writing import written

COLUMNS = {"x": Column(dtype="uint8", shape=(1 << 16,))}


def vouch_for(path, content):
    """Put a shard in the place of a store's only one, and write the manifest that names its size
    and hash.
    """
    (shard,) = json.loads((path / MANIFEST_NAME).read_bytes())["shards"]
    (path / shard["file"]).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_manifest(path / MANIFEST_NAME, shards=[{**shard, "bytes": len(content), "sha256": digest}])


def as_file(batch, compression=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as file:
        file.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def zeros(tmp_path):
    """A store of a row of zeros."""
    return written(tmp_path / "s", COLUMNS, {"x": np.zeros((1, 1 << 16), np.uint8)}).path


def test_shards_that_are_no_files_of_their_columns_end_in_a_sentence(zeros):
    whole = next(zeros.glob("*.arrow")).read_bytes()
    rows = pa.record_batch(
        [pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 1 << 16), np.uint8))], ["x"]
    )
    others = {
        "another column": as_file(pa.record_batch([pa.array([1])], ["y"])),
        "other rows": as_file(rows.slice(0, 0)),
        "compressed": as_file(rows, "zstd"),
        "a stream": whole[8:],
        "cut": whole[: len(whole) // 2],
        "dictionaries": as_file(pa.record_batch([pa.array(["a"]).dictionary_encode()], ["x"])),
    }
    for what, content in others.items():
        vouch_for(zeros, content)
        with refused(r"does not hold the columns of its manifest|was altered|cannot be read"):
            Store.open(zeros)
            pytest.fail(f"{what} was opened")


def test_flipped_bits_of_a_batchs_metadata_end_in_no_crash(zeros):
    whole = next(zeros.glob("*.arrow")).read_bytes()
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(whole)[8:])
    messages.read_next_message()
    metadata = messages.read_next_message().metadata.to_pybytes()
    begin = whole.index(metadata) - 8
    for damaged in bit_flips(metadata, 500):
        content = whole[begin : begin + 8] + damaged + whole[begin + 8 + len(metadata) :]
        try:
            found = read_block(pa.py_buffer(content), COLUMNS, arrow_schema(COLUMNS), 1)
            assert found["x"].shape == (1, 1 << 16)
        except (pa.ArrowException, ValueError, OSError, LookupError):
            continue
