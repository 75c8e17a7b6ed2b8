"""Shards of a stranger, for which their manifest vouches: compressed ones, cut ones, other rows than it says."""

import hashlib
import struct
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from ditlab.data.stores.blocks import first_batch, is_compressed
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source, format_manifest
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import StoreWriter
from ditlab.errors import UserError
from support.damage import bit_flips
from support.peak_memory import peak_bytes

ROWS, WIDTH = 64, 1 << 20


def vouch_for(path, content):
    """Put a shard in the place of a store's first, and write the manifest that names its size and hash.

    The manifest is of version 2, which says nothing of the shard's blocks.
    """
    manifest = Store.open(path).manifest
    shard = manifest.shards[0]
    digest = hashlib.sha256(content).hexdigest()
    changed = shard.model_copy(update={"bytes": len(content), "sha256": digest, "blocks": ""})
    (path / shard.file).write_bytes(content)
    before_blocks = {"shards": (changed,), "version": 2, "block_rows": 0, "index": None}
    (path / MANIFEST_NAME).write_bytes(format_manifest(manifest.model_copy(update=before_blocks)))


def as_file(batch, compression=None):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as file:
        file.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def zeros(tmp_path):
    """A store of a row of zeros, which a shard of 64 MiB of zeros will claim to be."""
    with StoreWriter(
        tmp_path / "s", {"x": Column(dtype="uint8", shape=(WIDTH,))}, name="s", source=Source(kind="t")
    ) as writer:
        writer.append({"x": np.zeros((1, WIDTH), np.uint8)})
    return tmp_path / "s"


@pytest.fixture(params=["zstd", "lz4"])
def compressed(request, zeros):
    """A store whose shard is compressed: of 64 MiB of zeros, 6 to 300 kB."""
    values = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((ROWS, WIDTH), np.uint8))
    content = as_file(pa.record_batch([values], ["x"]), request.param)
    assert len(content) < 1 << 19
    vouch_for(zeros, content)
    return zeros


def test_compressed_shards_are_refused(compressed):
    words = r"does not hold the columns .*\(its columns are compressed, as no store's are\);"
    with pytest.raises(UserError, match=words):
        Store.open(compressed)


@pytest.mark.slow
def test_compressed_shards_are_refused_before_they_are_unpacked(compressed):
    assert peak_bytes(partial(opening, compressed)) < 16 << 20


def opening(path):
    """Open a store, all modules having been loaded."""

    def step():
        with pytest.raises(UserError, match="compressed"):
            Store.open(path)

    return step


def test_shards_that_are_no_files_of_their_columns_end_in_a_sentence(zeros):
    whole = next(zeros.glob("*.arrow")).read_bytes()
    batch = first_batch(pa.py_buffer(whole))
    schema_end = 8 + 8 + struct.unpack_from("<I", whole, 12)[0]
    others = {
        "another column": as_file(pa.record_batch([pa.array([1])], ["y"])),
        "other rows": as_file(batch.slice(0, 0)),
        "no rows": whole[:schema_end],
        "no schema": whole[:8],
        "a stream": whole[8:],
        "cut": whole[: len(whole) // 2],
        "nothing": b"",
        "dictionaries": as_file(pa.record_batch([pa.array(["a"]).dictionary_encode()], ["x"])),
    }
    for what, content in others.items():
        vouch = Store.open(zeros).manifest
        vouch_for(zeros, content)
        with pytest.raises(UserError, match=r"does not hold the columns of its manifest|was altered"):
            Store.open(zeros)
            pytest.fail(f"{what} was opened")
        (zeros / vouch.shards[0].file).write_bytes(whole)
        (zeros / MANIFEST_NAME).write_bytes(format_manifest(vouch))


def test_flipped_bits_of_a_batchs_metadata_end_in_no_crash(zeros):
    whole = next(zeros.glob("*.arrow")).read_bytes()
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(whole)[8:])
    messages.read_next_message()
    metadata = messages.read_next_message().metadata.to_pybytes()
    assert not is_compressed(metadata)
    for damaged in bit_flips(metadata, 500):
        try:
            is_compressed(damaged)
        except ValueError:
            continue
    begin = whole.index(metadata)
    for damaged in bit_flips(metadata, 200):
        try:
            first_batch(pa.py_buffer(whole[:begin] + damaged + whole[begin + len(metadata) :]))
        except (pa.ArrowException, ValueError, OSError):
            continue
