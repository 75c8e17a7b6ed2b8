"""GET's stores by blocks: killed imports, object stores, chunks that are not what they should
be.
"""

import re
import shutil
from functools import partial

import numpy as np
import pytest

from ditlab.data import import_blocks
from ditlab.data.import_blocks import ProcessExecutor
from ditlab.data.stores import block_index
from ditlab.errors import Unreachable
from ditlab_addons.genome import get_import
from support.damage import refused
from support.datasets.get_sources import FORMATS, GetSource, accessibility, peaks_of, scores
from support.object_store.server import object_server

# zarr: fixed-length text has no specification in format 3
pytestmark = pytest.mark.filterwarnings("ignore")

PEAKS = {"chr2": 250, "chr10": 150}
ROW_BYTES = 4 * 4 * 5 + 4 + 8 + 2 * 4 * 8 + 8
"""Bytes of a window of four peaks with five features."""


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of about 16 windows, in blocks of the store of four."""
    monkeypatch.setattr(import_blocks, "LEAST_BYTES", 1500)
    monkeypatch.setattr(import_blocks, "MOST_BYTES", 1500)
    monkeypatch.setattr(get_import, "WHOLE_BYTES", 4 * ROW_BYTES)
    monkeypatch.setattr(block_index, "BLOCK_BYTES", 4 * ROW_BYTES)


@pytest.fixture
def source():
    num = sum(PEAKS.values())
    return GetSource(peaks_of(PEAKS), data=scores(num), atpm={"fetal_heart": accessibility(num)})


@pytest.fixture
def importing(get):
    """Import a cell type's peaks as `set`; returns the store."""
    return partial(get, cell_type="fetal_heart", name="set")


class Killed(Exception):
    pass


class Killing(ProcessExecutor):
    """Executor that ends after two blocks, as a kill does."""

    def run(self, work, blocks):
        for number, receipt in enumerate(super().run(work, blocks)):
            if number == 2:
                raise Killed
            yield receipt


@pytest.mark.parametrize("stride", [None, 3])
def test_the_cut_into_blocks_changes_nothing(
    importing, source, tmp_path, small_blocks, stride, monkeypatch
):
    path = source.write(tmp_path / "source.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(import_blocks, "LEAST_BYTES", 2**24)
        patch.setattr(import_blocks, "MOST_BYTES", 2**24)
        expected = importing(path, stride=stride)
    assert len(list(expected.path.glob("block-*.arrow"))) == 1
    shutil.rmtree(expected.path)
    cut = importing(path, stride=stride)
    assert cut.fingerprint == expected.fingerprint
    assert len(list(cut.path.glob("block-*.arrow"))) >= 5


def test_another_cell_type_or_a_changed_chunk_begins_anew(
    importing, source, tmp_path, small_blocks
):
    path = source.write(tmp_path / "source.zarr")
    whole = importing(path).fingerprint
    shutil.rmtree(tmp_path / "stores")
    for _ in range(3):
        with pytest.raises(Killed):
            importing(path, executor=Killing(1))
    source.data[3] = 500  # larger than any other: every block's scores are divided by it
    source.write(path)
    changed = importing(path)
    shutil.rmtree(tmp_path / "stores")
    assert changed.fingerprint == importing(path).fingerprint != whole


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_an_object_store_that_fails_at_times_gives_the_same_store(
    importing, source, tmp_path, zarr_format
):
    path = source.write(tmp_path / "bucket" / "source.zarr", zarr_format, chunk=20)
    (path / "data" / ("3.0" if zarr_format == 2 else "c/3/0")).unlink()
    here = importing(path, name="here")
    seen = []

    def fault(request):
        seen.append(request)
        return {4: "500", 9: "drop"}.get(len(seen)) if request.method == "GET" else None

    with object_server(tmp_path) as server:
        server.fault = fault
        there = importing(f"s3://bucket/source.zarr?{server.query}", name="there")
    assert there.fingerprint == here.fingerprint and len(seen) > 9
    assert "read from source.zarr" in there.manifest.source.note
    chunks = [each.key for each in server.ranges() if re.search(r"/data/.*\d$", each.key)]
    assert len(chunks) <= 2 * 19 + 2, "each is read once a pass, and again after a failure"
    assert there.manifest.receipt == here.manifest.receipt


def test_shards_of_an_object_store_are_read_in_parts(importing, tmp_path):
    source = GetSource(peaks_of({"chr2": 400}), data=scores(400), atpm={})
    path = source.write(tmp_path / "bucket" / "source.zarr", chunk=10, shards=(200, 4))
    here = importing(path, cell_type=None, name="here")
    with object_server(tmp_path) as server:
        uri = f"s3://bucket/source.zarr?{server.query}"
        there = importing(uri, cell_type=None, name="there")
    assert there.fingerprint == here.fingerprint


def test_mistakes_about_an_object_store_are_one_sentence(importing, source, tmp_path, monkeypatch):
    source.write(tmp_path / "bucket" / "source.zarr", 2, chunk=50)

    def check(problem):
        with refused(rf"{problem} \(.*the credentials in the environment.*[.?]$", Unreachable):
            importing(f"s3://bucket/source.zarr?{server.query}")
        assert not (tmp_path / "stores").exists()

    with object_server(tmp_path) as server:
        server.fault = lambda request: "403"
        check("cannot be listed")
        server.fault = lambda request: "403" if "/data/" in request.key else None
        monkeypatch.setattr("ditlab.data.source_files._PAUSES", ())
        check("cannot be read")


def test_a_damaged_source_leaves_no_unfinished_import(importing, source, tmp_path, small_blocks):
    source.data[399, 1] = np.nan
    path = source.write(tmp_path / "source.zarr")
    with refused(r"holds nan for motif GATA of peak chr10:149010-149410 \(number 399 from 0\)"):
        importing(path)
    assert not (tmp_path / "stores").exists()
