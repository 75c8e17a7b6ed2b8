"""Zarr stores that would run code or wait for ever are refused before anything of them is
decoded.
"""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import zarr

from ditlab_addons.genome.zarr_arrays import ZarrFiles, open_array, open_group
from support import damage

# zarr: fixed-length text has no specification in format 3
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def store(tmp_path):
    """Write a store with the array `x` of 4x2 numbers in one chunk, and `names` of four texts."""

    def write(zarr_format=3, **options):
        path = tmp_path / "s.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        group.create_array("x", data=np.arange(8.0).reshape(4, 2), chunks=(4, 2), **options)
        group.create_array("names", data=np.array(["a", "b", "c", "d"], np.dtypes.StringDType()))
        return path

    return write


def read(path, key="x"):
    files = ZarrFiles.listed(str(path))
    open_group(files)
    return open_array(files, key).read()


def refused(path, key, words):
    with damage.refused(rf"{words}.*\.$"):
        read(path, key)


def chunk(path, key="x"):
    return next(
        file for file in (path / key).rglob("*") if file.is_file() and file.name[0] not in ".z"
    )


def edit(path, key, change):
    file = next(
        file for file in (path / key / ".zarray", path / key / "zarr.json") if file.exists()
    )
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


class Planted:
    """Object whose unpickling leaves a file behind."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-array", "categorize"])
def test_filters_of_objects_are_refused_before_anything_is_decoded(store, tmp_path, codec):
    path, mark = store(2), tmp_path / "mark"
    unknown = f"its codec '{codec}' is not among those that are read"
    objects = "its values are objects or records of several fields"
    changes = (
        (
            {"dtype": "|O", "filters": [{"id": codec}], "compressor": None, "fill_value": None},
            unknown,
        ),
        ({"dtype": "<i4"}, unknown),
        ({"filters": [codec]}, unknown),
        ({"filters": None, "compressor": {"id": codec}}, unknown),
        ({"dtype": "|O", "compressor": None}, objects),
        ({"dtype": [["a", "|O"]]}, objects),
    )
    for key in ("x", "names"):
        chunk(path, key).write_bytes(pickle.dumps(Planted(mark)))
        for change, words in changes:
            edit(path, key, lambda m, change=change: m.update(change))
            refused(path, key, words)
    three = store(3)
    edit(
        three,
        "names",
        lambda m: m["codecs"].__setitem__(0, {"name": f"numcodecs.{codec}", "configuration": {}}),
    )
    refused(three, "names", f"its codec 'numcodecs.{codec}' is not among those")
    assert not mark.exists()


def test_shapes_beyond_memory_are_refused(store):
    path = store(2)
    edit(path, "x", lambda m: m.update(chunks=[2**40, 2], shape=[2**40, 2]))
    refused(
        path,
        "x",
        r"its chunks have 17,592,186,044,416 bytes each, and at most 1,073,741,824 are read",
    )
    path = store(3)
    edit(path, "x", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[2**30, 2]))
    refused(path, "x", r"its chunks have 17,179,869,184 bytes each")


def test_a_copy_of_the_metadata_is_not_trusted(store):
    path = store(2)
    zarr.consolidate_metadata(path)
    file = path / ".zmetadata"
    text = re.sub(r'"filters": null', '"filters": [{"id": "pickle"}]', file.read_text())
    file.write_text(text)
    assert read(path).shape == (4, 2)
