"""Importer of GET's stores: small ones in both of zarr's formats."""

import tracemalloc

import numpy as np
import pytest

from ditlab_addons.genome import get_import, get_zarr
from support.datasets.get_sources import FORMATS, MOTIFS, GetSource, peaks_of, scores

# zarr: fixed-length text has no specification in format 3
pytestmark = pytest.mark.filterwarnings("ignore")


def rows(store, column):
    return store.tensor(column).numpy()


def present(store, column):
    """Return a column's regions without padding, window after window."""
    return rows(store, column)[rows(store, "present")]


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_without_a_cell_type_all_peaks_come_with_ones(get, zarr_format):
    source = GetSource()
    store = get(source, zarr_format)
    assert store.name == "get" and store.columns["regions"].shape == (4, 5)
    assert store.columns["regions"].names == (*MOTIFS, "accessibility")
    divisors = np.array(store.columns["regions"].divisors)
    assert np.array_equal(divisors, [*np.where(source.data.max(0) > 0, source.data.max(0), 1), 1])
    values = present(store, "regions")
    np.testing.assert_allclose(values[:, :4] * divisors[:4], source.data, rtol=1e-6)
    assert (values[:, 4] == 1).all() and not values[:, 2].any()
    assert values[:, :4].max(0).tolist() == [1, 1, 0, 1]
    assert rows(store, "present").sum(1).tolist() == [4, 4, 4, 4, 4, 3, 4, 4, 3]
    assert not rows(store, "regions")[~rows(store, "present")].any()
    assert store.columns["chromosome"].names == ("chr2", "chr10"), "the file's order"
    assert rows(store, "chromosome").tolist() == [0] * 6 + [1] * 3
    ends = zip(present(store, "start"), present(store, "end"), strict=True)
    assert [f"chr2:{start}-{end}" for start, end in ends][:23] == source.peaks[:23]
    assert "fetal_heart" in store.manifest.source.note


@pytest.mark.parametrize("shape", [(34,), (34, 1)])
def test_a_cell_type_drops_its_closed_peaks_first(get, shape):
    source = GetSource()
    atpm = source.atpm["fetal_heart"]
    source.data[0] = 1000  # a closed peak: its scores are no maxima
    source.atpm["fetal_heart"] = atpm.reshape(shape)
    store = get(source, cell_type="fetal_heart")
    kept = atpm > 0
    assert store.name == "get-fetal_heart"
    largest = source.data[kept].max(0)
    assert store.columns["regions"].divisors == (*np.where(largest > 0, largest, 1).tolist(), 1.0)
    starts = np.array([int(name.split(":")[1].split("-")[0]) for name in source.peaks])
    assert np.array_equal(present(store, "start"), starts[kept])
    for window in range(len(store)):
        open_ = rows(store, "present")[window]
        assert rows(store, "regions")[window, open_, 4].max() == 1
    first = atpm[kept][:4]
    np.testing.assert_allclose(rows(store, "regions")[0, :, 4], first / first.max(), rtol=1e-6)
    assert store.manifest.receipt.levels[0].left_out["zero atpm"] == 9


def test_accessibility_can_be_ones_with_a_cell_type(get):
    store = get(GetSource(), cell_type="fetal_heart", accessibility="ones", name="ones")
    assert store.path.name == store.name == "ones"
    assert rows(store, "present").sum() == 25
    assert (present(store, "regions")[:, 4] == 1).all()


@pytest.mark.parametrize("text", ["variable", "fixed", "bytes"])
def test_both_formats_and_all_texts_give_one_fingerprint(get, text):
    plain = get(GetSource(), 3, cell_type="fetal_heart").fingerprint
    for zarr_format in FORMATS:
        assert get(GetSource(text=text), zarr_format, cell_type="fetal_heart").fingerprint == plain


@pytest.mark.parametrize("stride", [1, 3, 4, 6, 15])
def test_blocks_chunks_and_strides_do_not_change_the_windows(get, stride, monkeypatch):
    source = GetSource()
    expected = source.data / np.where(source.data.max(0) > 0, source.data.max(0), 1)
    monkeypatch.setattr(get_import, "READ_BYTES", 1)  # a chunk of 5 peaks at a time
    monkeypatch.setattr(get_zarr, "NAMES_AT_A_TIME", 7)
    store = get(source, stride=stride)
    numbers = {name: n for n, name in enumerate(source.peaks)}
    for window in range(len(store)):
        name = store.columns["chromosome"].names[rows(store, "chromosome")[window]]
        for region in np.flatnonzero(rows(store, "present")[window]):
            start, end = rows(store, "start")[window, region], rows(store, "end")[window, region]
            np.testing.assert_array_equal(
                rows(store, "regions")[window, region, :4],
                expected[numbers[f"{name}:{start}-{end}"]],
            )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_store(get, tmp_path, monkeypatch):
    """Coordinates, packed into blocks too, take about 120 bytes a peak, scores 400."""
    monkeypatch.setattr(get_import, "READ_BYTES", 2**18)
    monkeypatch.setattr(get_zarr, "NAMES_AT_A_TIME", 1024)
    monkeypatch.setattr("ditlab.data.region_windows.BATCH_BYTES", 2**18)
    # as are all blocks of a large store
    monkeypatch.setattr("ditlab.data.stores.block_index.BLOCK_BYTES", 2**18)
    monkeypatch.setattr(get_import, "WHOLE_BYTES", 2**18)
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 2**18)
    motifs = [f"M{n}" for n in range(100)]
    highest = []
    for peaks in (2_000, 2_000, 30_000):  # the first call pays for what is loaded once
        source = GetSource(
            peaks_of({"chr1": peaks}), motifs, scores(peaks, 100), {"T": np.ones(peaks)}
        )
        path = source.write(tmp_path / f"{peaks}.zarr", chunk=500)
        del source
        tracemalloc.start()
        get(path, cell_type="T", regions=50)
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[2] - highest[1] < 28_000 * 150


def test_both_passes_report_progress(get):
    seen = {}
    get(GetSource(), progress=lambda what, *now: seen.update({what: now}))
    whole = (1, 1, "blocks")
    assert seen.pop("reading names") == (34, 34, "peaks")
    assert seen == {"reading the largest scores": whole, "writing": whole}


def test_a_source_whose_windows_all_span_too_much_is_refused(refused):
    refused(
        GetSource(peaks_of({"chr2": 23, "chr10": 11}, gap=9_000_000)),
        "--max-span=5000000 drops all 9 windows of --regions=4 over 34 peaks",
        "lower --regions",
    )


@pytest.mark.parametrize(
    ("options", "file", "what", "rows_lost"),
    [
        ({"zarr_format": 2}, "data/3.0", "chunks", slice(15, 20)),
        ({"shards": (10, 4)}, "data/c/1/0", "shards", slice(10, 20)),
    ],
)
def test_chunks_and_shards_without_a_file_are_noted(get, tmp_path, options, file, what, rows_lost):
    path = GetSource().write(tmp_path / "holes.zarr", **options)
    assert "no file" not in get(path, name="whole").manifest.source.note
    (path / file).unlink()
    store = get(path)
    assert store.manifest.receipt.changed[f"{what} without a file, read as zeros"] == 1
    assert not present(store, "regions")[rows_lost, :4].any()


def test_a_windows_largest_accessibility_is_kept(get):
    source = GetSource()
    store = get(source, cell_type="fetal_heart")
    atpm = source.atpm["fetal_heart"]
    whole = (rows(store, "regions")[:, :, 4] * rows(store, "largest_accessibility")[:, None])[
        rows(store, "present")
    ]
    np.testing.assert_allclose(whole, atpm[atpm > 0], rtol=1e-6)
    assert "largest_accessibility" not in get(source).columns


def test_windows_that_share_regions_are_noted_with_the_remedy(get):
    note = get(GetSource(), stride=2).manifest.source.note
    assert (
        "neighbouring windows share regions: hold out whole chromosomes: data.hold_out: "
        "{column: chromosome"
    ) in note
    assert "share regions" not in get(GetSource(), stride=4).manifest.source.note
