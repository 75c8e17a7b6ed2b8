"""Damaged or contradictory sources of GET are refused with a message that names the place."""

import shutil
import sys

import numpy as np
import pytest
import zarr

from support.datasets.get_sources import GetSource

# zarr: fixed-length text has no specification in format 3
pytestmark = pytest.mark.filterwarnings("ignore")


def put(position, value):
    return lambda source: source.data.__setitem__(position, value)


def rename(peak, name):
    return lambda source: source.peaks.__setitem__(peak, name)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda s: s.motifs.pop(), ["motif_names has shape (3,), and data has 4 motifs"]),
        (
            lambda s: setattr(s, "data", np.ones((34, 0))),
            ["data has shape (34, 0) of float64", "one of each at least"],
        ),
        (lambda s: s.motifs.__setitem__(1, "CTCF"), ["holds 'CTCF' more than once"]),
        (lambda s: s.motifs.__setitem__(1, "accessibility"), ["names a motif accessibility"]),
        (lambda s: s.peaks.pop(), ["peak_names has shape (33,), and data has 34 peaks"]),
        (
            put((7, 1), np.nan),
            ["holds nan for motif GATA of peak chr2:7010-7410 (number 7 from 0)"],
        ),
        (put((8, 0), -0.5), ["holds -0.5 for motif CTCF of peak chr2:8010-8410"]),
        (
            rename(6, "chr2_6010_6410"),
            ["'chr2_6010_6410' as peak 6 (counted from 0)", "CHROMOSOME:START-END"],
        ),
        (
            rename(6, "chr2:6010-6010"),
            ["'chr2:6010-6010' as peak 6", "does not end behind its start"],
        ),
        (
            rename(6, "chr2:5000-5400"),
            ["holds chr2:5010-5410 (peak 5) before chr2:5000-5400; sort the peaks by"],
        ),
        (rename(33, "chr2:99999-100100"), ["(peak 32) before chr2:99999-100100; sort the peaks"]),
    ],
)
def test_a_source_that_contradicts_itself_is_named(refused, change, parts):
    source = GetSource()
    change(source)
    refused(source, *parts)


@pytest.mark.parametrize(
    ("atpm", "parts"),
    [
        (
            np.ones(33),
            ["atpm/T has shape (33,) of float64, and it needs a real number for each of 34 peaks"],
        ),
        (
            np.where(np.arange(34) == 3, np.nan, 1),
            ["atpm/T holds nan for peak chr2:3010-3410 (number 3 from 0)"],
        ),
        (np.zeros(34), ["--cell-type=T: all 34 peaks", "choose another cell type"]),
    ],
)
def test_invalid_accessibilities_are_named(refused, atpm, parts):
    refused(GetSource(atpm={"T": atpm}), *parts, cell_type="T")


def test_an_unknown_cell_type_names_the_nearest(refused):
    source = GetSource(atpm={name: np.ones(34) for name in ("fetal_heart", "fetal_lung", "K562")})
    say = "did you mean 'fetal_heart'"
    refused(source, "--cell-type=fetal_hart", say, cell_type="fetal_hart")
    refused(source, "it has K562, fetal_heart, fetal_lung.", cell_type="xyz")
    refused(GetSource(atpm={}), "leave --cell-type out", cell_type="T")
    refused(source, "--accessibility=atpm needs a cell type", accessibility="atpm")


@pytest.mark.parametrize("key", ["data", "peak_names", "motif_names"])
def test_a_missing_key_is_named_with_what_there_is(refused, tmp_path, key):
    path = GetSource().write(tmp_path / "part.zarr")
    shutil.rmtree(path / key)
    there = ", ".join(sorted({"atpm", "data", "peak_names", "motif_names"} - {key}))
    refused(path, f"holds no array '{key}' (it holds {there})")


def test_a_folder_without_a_zarr_store_is_named(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zarr.json").write_text('{"zarr_format"')
    within = GetSource().write(tmp_path / "whole.zarr") / "data"
    for path in (tmp_path / "empty", tmp_path / "broken", within):
        refused(path, f"--source={path} is no zarr store", "name the folder of one")
    refused(within / "zarr.json", f"--source={within / 'zarr.json'} is no zarr store")


def test_a_damaged_chunk_is_named(refused, tmp_path):
    path = GetSource().write(tmp_path / "damaged.zarr")
    (path / "data/c/3/0").write_bytes(b"no chunk of any kind")
    refused(path, "data cannot be read from row 0", "copy the store again")


@pytest.mark.parametrize("key", ["data", "peak_names", "motif_names", "atpm/fetal_heart"])
def test_metadata_that_cannot_be_read_are_named(refused, tmp_path, key):
    path = GetSource().write(tmp_path / "source.zarr")
    (path / key / "zarr.json").write_text("{")
    words = f"{path}: {key} cannot be opened (Expecting property name"
    refused(path, words, "copy the store again", cell_type="fetal_heart")


def test_unused_arrays_may_be_broken(get, tmp_path):
    path = GetSource().write(tmp_path / "source.zarr")
    (path / "atpm" / "fetal_heart" / "zarr.json").write_text("{")
    assert "fetal_heart" in get(path).manifest.source.note


def test_a_group_in_an_arrays_place_is_named(refused, tmp_path):
    path = GetSource().write(tmp_path / "source.zarr")
    shutil.rmtree(path / "motif_names")
    zarr.open_group(path, mode="a").create_group("motif_names")
    refused(path, "motif_names is no array")


def test_without_zarr_the_command_that_brings_it_is_named(refused, tmp_path, monkeypatch):
    path = GetSource().write(tmp_path / "source.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    refused(path, "pip install 'ditlab[get]'")
