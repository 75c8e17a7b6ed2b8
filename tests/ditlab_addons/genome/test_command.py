"""`ditlab data import get`: output, files, exit codes."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr

from support.datasets.get_sources import GetSource


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a zarr store of 12 peaks on two chromosomes, with 14 motifs and two cell types."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITLAB_HOME", "home")
    monkeypatch.setenv("COLUMNS", "120")
    group = zarr.open_group(tmp_path / "regions.zarr", mode="w", zarr_format=2)
    peaks = [f"chr{c}:{n * 100}-{n * 100 + 50}" for c in (3, 11) for n in range(6)]
    text = np.dtypes.StringDType()
    group.create_array("data", data=np.random.default_rng(0).random((12, 14), np.float32))
    group.create_array("peak_names", data=np.array(peaks, text))
    group.create_array("motif_names", data=np.array([f"M{n}" for n in range(14)], text))
    atpm = group.create_group("atpm")
    for name in ("fetal_heart", "CD4+ T cell"):
        atpm.create_array(name, data=np.arange(12.0))
    return tmp_path / "regions.zarr"


def test_import_and_inspect_regions(ditlab, regions):
    done = ditlab(
        "data",
        "import",
        "get",
        "--source",
        "regions.zarr",
        "--cell-type",
        "CD4+ T cell",
        "--regions",
        "4",
        "--json",
    )
    (store,) = done.json["stores"]
    assert (store["name"], store["rows"]) == ("get-CD4_T_cell", 4)
    assert "note: read from regions.zarr (zarr format 2)" in done.err
    seen = ditlab("data", "inspect", store["name"], "--json").json
    assert seen["columns"]["regions"]["names"] == [*(f"M{n}" for n in range(14)), "accessibility"]
    assert seen["columns"]["chromosome"]["names"] == ["chr3", "chr11"]
    assert len(seen["columns"]["regions"]["divisors"]) == 15
    table = ditlab("data", "inspect", store["name"]).out
    assert re.search(
        r"chromosome: rows by class\s+class +name +rows\s+0 +chr3 +2\s+1 +chr11 +2\s", table
    )


def test_mistakes_about_regions_end_with_2_and_the_knob(ditlab, regions, tmp_path):
    for arguments, message in (
        ((), "Missing option '--source'"),
        (("--source", "nowhere"), "--source=nowhere: there is no such file or folder; correct it."),
        (("--source", ".", "--regions", "0"), "0 is not in the range x>=1"),
        (("--source", ".", "--accessibility", "two"), "'two' is not one of 'atpm', 'ones'"),
        (("--source", ".", "--name", "a/b"), "--name='a/b': is no plain folder name"),
        (("--source", ".", "--cell-type", ""), "--cell-type='' must be at least a character long"),
        (("--source", "."), "--source=. is no zarr store"),
        (
            ("--source", "regions.zarr", "--cell-type", "fetal"),
            "--cell-type=fetal: regions.zarr has no such cell type",
        ),
    ):
        done = ditlab("data", "import", "get", *arguments, "--json")
        assert done.code == 2, arguments
        assert message in done.err and "Traceback" not in done.err
        assert done.json["exit_code"] == 2
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
