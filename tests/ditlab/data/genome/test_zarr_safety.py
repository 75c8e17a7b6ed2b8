"""Zarr stores that would run code, fill memory or wait for ever are refused before anything of them is decoded."""

import bz2
import gzip
import json
import lzma
import pickle
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from ditlab.data.genome.zarr_arrays import open_array, open_group
from ditlab.data.genome.zarr_checks import list_zarr
from ditlab.errors import UserError
from support.damage import bit_flips, mutations
from support.special_files import KINDS, put, remove

pytestmark = pytest.mark.filterwarnings("ignore")  # zarr: fixed-length text has no specification in format 3
FORMATS = (2, 3)
BOMB = bytes(2**22)


@pytest.fixture
def store(tmp_path) -> Callable[..., Path]:
    """Write a store with the array `x` of 4x2 numbers in one chunk, and `names` of four texts."""

    def write(zarr_format: int = 3, **options: Any) -> Path:
        path = tmp_path / "s.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        group.create_array("x", data=np.arange(8.0).reshape(4, 2), chunks=(4, 2), **options)
        group.create_array("names", data=np.array(["a", "b", "c", "d"], np.dtypes.StringDType()))
        return path

    return write


def read(path: Path, key: str = "x") -> np.ndarray:
    files = list_zarr(str(path))
    open_group(files)
    return open_array(files, key).read()


def refused(path: Path, key: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(path, key)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def chunk(path: Path, key: str = "x") -> Path:
    return next(file for file in (path / key).rglob("*") if file.is_file() and file.name[0] not in ".z")


def edit(path: Path, key: str, change: Callable[[dict], object]) -> None:
    file = next(file for file in (path / key / ".zarray", path / key / "zarr.json") if file.exists())
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


class Planted:
    """Object whose unpickling leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-array", "categorize"])
def test_filters_of_objects_are_refused_before_anything_is_decoded(store, tmp_path, codec):
    path, mark = store(2), tmp_path / "mark"
    for key in ("x", "names"):
        edit(path, key, lambda m: m.update(dtype="|O", filters=[{"id": codec}], compressor=None, fill_value=None))
        chunk(path, key).write_bytes(pickle.dumps(Planted(mark)))
        refused(
            path, key, rf"{key} is not read: its values are objects of {codec}, which may hold code; copy or export"
        )
        edit(path, key, lambda m: m.update(dtype=[["a", "|O"]]))
        refused(path, key, "its values are records of several fields")
        edit(path, key, lambda m: m.update(dtype="<f8"))
        refused(path, key, f"its codec '{codec}' is not among those that are read")
    three = store(3)
    edit(three, "names", lambda m: m["codecs"].__setitem__(0, {"name": f"numcodecs.{codec}", "configuration": {}}))
    refused(three, "names", f"its codec 'numcodecs.{codec}' is not among those")
    assert not mark.exists()


def test_a_filter_of_text_is_refused_for_numbers(store):
    path = store(2)
    edit(path, "x", lambda m: m.update(filters=[{"id": "vlen-utf8"}]))
    refused(path, "x", "its codec 'vlen-utf8' is not among those")
    path = store(3)
    edit(path, "x", lambda m: m["codecs"].__setitem__(0, {"name": "vlen-utf8", "configuration": {}}))
    refused(path, "x", "its codecs do not give values of its type, float64|x cannot be opened")


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "blosc": lambda data: bytes(numcodecs.Blosc("zstd").encode(data)),
    "bz2": bz2.compress,
    "gzip": gzip.compress,
    "gzip in two": lambda data: gzip.compress(data[:64]) + gzip.compress(data),
    "lz4": lambda data: bytes(numcodecs.LZ4().encode(data)),
    "lzma": lzma.compress,
    "zlib": zlib.compress,
    "zstd": lambda data: bytes(numcodecs.Zstd().encode(data)),
    "": lambda data: data,
}


@pytest.mark.parametrize("codec", PACKED)
def test_chunks_that_unpack_to_too_much_are_refused(store, codec):
    path = store(2)
    name = codec.partition(" ")[0]
    edit(path, "x", lambda m: m.update(compressor={"id": name} if name else None))
    chunk(path).write_bytes(PACKED[codec](np.arange(8.0).tobytes()) if " " not in codec else gzip.compress(bytes(64)))
    assert read(path).shape == (4, 2)
    chunk(path).write_bytes(PACKED[codec](BOMB))
    words = "unpacks to more than a chunk's 65,664 bytes" if codec else "has 4,194,304 bytes, and a chunk takes at most"
    refused(path, "x", words)


def test_a_frame_of_zstd_without_a_size_is_counted(store):
    path = store(3)
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(BOMB)
    chunk(path).write_bytes(sink.getvalue().to_pybytes())
    refused(path, "x", "unpacks to more than a chunk's 65,664 bytes")


def test_chunks_within_shards_are_checked(store):
    path = store(3, shards=(4, 2))
    edit(path, "x", lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[2, 2]))
    inner = bytes(numcodecs.Zstd().encode(np.arange(4.0).tobytes()))
    bomb = bytes(numcodecs.Zstd().encode(BOMB))
    for second in (inner, bomb):
        index = struct.pack("<4Q", 0, len(inner), len(inner), len(second))
        checksum = struct.pack("<I", int(np.frombuffer(numcodecs.CRC32C().encode(index)[-4:], "<u4")[0]))
        chunk(path).write_bytes(inner + second + index + checksum)
        if second is inner:
            assert read(path).tolist() == [[0, 1], [2, 3]] * 2
    refused(path, "x", "unpacks to more than a chunk's 65,600 bytes")


@pytest.mark.parametrize("codec", ["blosc", "gzip", ""])
def test_texts_that_claim_to_be_too_many_are_refused(store, codec):
    """A chunk's first four bytes are the number of its texts, for each of which zarr's codec takes 8 bytes."""
    path = store(2)
    edit(path, "names", lambda m: m.update(compressor={"id": codec} if codec else None))
    chunk(path, "names").write_bytes(PACKED[codec](struct.pack("<I", 2**32 - 1) + bytes(99)))
    refused(path, "names", "is damaged, or holds more than a chunk's 4 texts")


def test_shapes_beyond_memory_are_refused(store):
    path = store(2)
    edit(path, "x", lambda m: m.update(chunks=[2**40, 2], shape=[2**40, 2]))
    refused(path, "x", r"its chunks have 17,592,186,044,416 bytes each, and at most 1,073,741,824 are read")
    path = store(3)
    edit(path, "x", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[2**30, 2]))
    refused(path, "x", r"its chunks have 17,179,869,184 bytes each")


@pytest.mark.parametrize(("kind", "problem"), KINDS[:-1])
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_special_files_in_a_store_are_named(store, zarr_format, kind, problem):
    path = store(zarr_format)
    for file in (chunk(path), path / "x" / (".zarray" if zarr_format == 2 else "zarr.json"), path / "x" / "stray"):
        content = file.read_bytes() if file.exists() else None
        put(kind, file)
        refused(path, "x", rf"s\.zarr: x (is not read|cannot be opened|is no array).*({problem}|a device|{file.name})")
        remove(file)
        if content is not None:
            file.write_bytes(content)
    assert read(path).shape == (4, 2)
    put(kind, path / (".zgroup" if zarr_format == 2 else "zarr.json"))
    refused(path, "x", rf"--source=.*s\.zarr is no zarr store \(.*({problem}|a device|nothing|[Nn]o)")


def test_a_copy_of_the_metadata_is_not_trusted(store):
    path = store(2)
    zarr.consolidate_metadata(path)
    file = path / ".zmetadata"
    text = re.sub(r'"filters": null', '"filters": [{"id": "pickle"}]', file.read_text())
    file.write_text(text)
    assert read(path).shape == (4, 2)


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("key", ["x", "names"])
def test_damage_is_refused_in_a_sentence(store, zarr_format, key):
    path = store(zarr_format)
    for file in (path / key / (".zarray" if zarr_format == 2 else "zarr.json"), chunk(path, key)):
        content = file.read_bytes()
        damaged = [*bit_flips(content, 25), *(mutations(content, 25) if content[:1] == b"{" else ())]
        for each in damaged:
            file.write_bytes(each)
            try:
                read(path, key)
            except UserError as error:
                assert str(error).endswith(".")
        file.write_bytes(content)
