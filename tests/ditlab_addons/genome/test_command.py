"""`ditlab data import get`: output, files, exit codes."""

import re

import numpy as np
import pytest

from support.datasets.get_sources import GetSource, peaks_of, scores


@pytest.fixture
def regions(tmp_path, monkeypatch):
    """Write a zarr store of 12 peaks on two chromosomes, with 14 motifs and two cell types."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITLAB_HOME", "home")
    monkeypatch.setenv("COLUMNS", "120")
    atpm = {name: np.arange(12.0) for name in ("fetal_heart", "CD4+ T cell")}
    source = GetSource(peaks_of({"chr3": 6, "chr11": 6}), data=scores(12), atpm=atpm)
    return source.write(tmp_path / "regions.zarr", 2)


def test_import_and_inspect_regions(ditlab, regions):
    options = ("--source", "regions.zarr", "--cell-type", "CD4+ T cell", "--regions", "4")
    done = ditlab("data", "import", "get", *options, "--json")
    (store,) = done.json["stores"]
    assert (store["name"], store["rows"]) == ("get-CD4_T_cell", 4)
    assert "note: read from regions.zarr (zarr format 2)" in done.err
    table = ditlab("data", "inspect", store["name"]).out
    assert re.search(
        r"chromosome: rows by class\s+class +name +rows\s+0 +chr3 +2\s+1 +chr11 +2\s", table
    )


def test_mistakes_about_regions_end_with_2_and_the_knob(ditlab, regions, tmp_path):
    for arguments, message in (
        (("--source", ".", "--name", "a/b"), "--name='a/b': is no plain folder name"),
        (("--source", ".", "--cell-type", ""), "--cell-type='' must be at least a character long"),
    ):
        ditlab("data", "import", "get", *arguments, "--json").refused(message)
        assert not (tmp_path / "home" / "stores").exists()


def test_each_peak_is_counted(get, tmp_path):
    source = GetSource().write(tmp_path / "r.zarr")
    (source / ".DS_Store").touch()
    store = get(source, cell_type="fetal_heart", regions=5, stride=6, max_span=6000)
    peaks, windows = store.manifest.receipt.levels
    left = peaks.left_out
    assert (peaks.found, peaks.used, left) == (
        34,
        {"in windows": 17},
        {"in no window": 8, "zero atpm": 9},
    )
    assert (windows.found, windows.used["rows"]) == (5, 4)
    assert windows.left_out == {"over 6,000 base pairs": 1}
