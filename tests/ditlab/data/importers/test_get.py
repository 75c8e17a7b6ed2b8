"""Importing GET's stores: small ones in both of zarr's formats, written here."""

import dataclasses
import json
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import zarr

from ditlab.data.genome import get_zarr
from ditlab.data.genome.peak_names import parse_peaks
from ditlab.data.import_request import ImportRequest
from ditlab.data.importing import run_import
from ditlab.data.stores.store import Store
from ditlab.errors import UserError
from ditlab.spec.importing import GetOptions

pytestmark = pytest.mark.filterwarnings("ignore")  # zarr: fixed-length text has no specification in format 3
FORMATS = (2, 3)
MOTIFS = ("CTCF", "GATA", "SILENT", "SOX")


def peaks_of(chromosomes: dict[str, int], gap: int = 1000) -> list[str]:
    return [f"{name}:{n * gap + 10}-{n * gap + 410}" for name, num in chromosomes.items() for n in range(num)]


@dataclass
class Source:
    """What a store is to hold; a test changes a part."""

    peaks: list = field(default_factory=lambda: peaks_of({"chr2": 23, "chr10": 11}))
    motifs: list = field(default_factory=lambda: list(MOTIFS))
    data: np.ndarray = field(default_factory=lambda: scores(34))
    atpm: dict[str, np.ndarray] = field(default_factory=lambda: {"fetal_heart": accessibility(34)})
    text: str = "variable"
    """How names are stored: variable, fixed or bytes."""

    def write(self, path: Path, zarr_format: int = 3, chunk: int = 5, shards: tuple[int, int] | None = None) -> Path:
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        kind = {"variable": np.dtypes.StringDType(), "fixed": "U", "bytes": "S"}[self.text]
        for key in ("data", "peak_names", "motif_names"):
            values = {"data": self.data, "peak_names": self.peaks, "motif_names": self.motifs}[key]
            if key != "data":
                values = np.array(values).astype(kind)
            chunks = tuple(max(1, each) for each in (chunk, *np.shape(values)[1:])) if np.ndim(values) else "auto"
            group.create_array(key, data=values, chunks=chunks, shards=shards if key == "data" else None)
        if self.atpm:
            below = group.create_group("atpm")
            for name, values in self.atpm.items():
                below.create_array(name, data=values)
        return path


def scores(peaks: int, motifs: int = 4, seed: int = 0) -> np.ndarray:
    """Sparse, of different sizes by motif, motif 2 zero everywhere."""
    generator = np.random.default_rng(seed)
    values = generator.random((peaks, motifs), np.float32) * (generator.random((peaks, motifs)) < 0.4)
    values *= np.arange(1, motifs + 1) ** 2
    values[:, 2] = 0
    return values.astype(np.float32)


def accessibility(peaks: int) -> np.ndarray:
    values = np.random.default_rng(1).random(peaks) + 0.1
    values[::4] = 0
    return values


@pytest.fixture
def get(tmp_path: Path):
    """Imports a source with options; the store."""

    def run(source: Source | Path, zarr_format: int = 3, progress: Callable | None = None, **options) -> Store:
        path = source
        if isinstance(source, Source):
            path = source.write(tmp_path / "source.zarr", zarr_format)
        asked = GetOptions(source=path, **{"regions": 4, **options})
        request = ImportRequest(tmp_path / "stores", tmp_path / "caches", asked)
        if progress:
            request = dataclasses.replace(request, progress=progress)
        (imported,) = run_import("get", request)
        return imported.store

    return run


def refused(get, source: Source, *parts: str, tmp_path: Path, **options) -> None:
    """Importing says all parts in one message, and writes nothing."""
    with pytest.raises(UserError) as caught:
        get(source, **options)
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "stores").exists()


def rows(store: Store, column: str) -> np.ndarray:
    return store.tensor(column).numpy()


def present(store: Store, column: str) -> np.ndarray:
    """A column's regions without padding, window after window."""
    return rows(store, column)[rows(store, "present")]


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_without_a_cell_type_all_peaks_come_with_ones(get, zarr_format):
    source = Source()
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
    assert [f"chr2:{a}-{b}" for a, b in zip(present(store, "start"), present(store, "end"), strict=True)][:23] == (
        source.peaks[:23]
    )
    assert "fetal_heart" in store.manifest.source.note


@pytest.mark.parametrize("shape", [(34,), (34, 1)])
def test_a_cell_type_drops_its_closed_peaks_first(get, shape):
    source = Source()
    atpm = source.atpm["fetal_heart"]
    source.data[0] = 1000  # a closed peak: its scores are no maxima
    source.atpm["fetal_heart"] = atpm.reshape(shape)
    store = get(source, cell_type="fetal_heart")
    kept = atpm > 0
    assert store.name == "get-fetal_heart"
    largest = source.data[kept].max(0)
    assert store.columns["regions"].divisors == (*np.where(largest > 0, largest, 1).tolist(), 1.0)
    assert [int(n) for n in present(store, "start")] == [
        int(name.split(":")[1].split("-")[0]) for name, keep in zip(source.peaks, kept, strict=True) if keep
    ]
    for window in range(len(store)):
        open_ = rows(store, "present")[window]
        assert rows(store, "regions")[window, open_, 4].max() == 1
    first = atpm[kept][:4]
    np.testing.assert_allclose(rows(store, "regions")[0, :, 4], first / first.max(), rtol=1e-6)
    assert "9 of 34 peaks dropped (zero atpm in fetal_heart)" in store.manifest.source.note


def test_accessibility_can_be_ones_with_a_cell_type(get):
    store = get(Source(), cell_type="fetal_heart", accessibility="ones", name="ones")
    assert store.path.name == store.name == "ones"
    assert rows(store, "present").sum() == 25
    assert (present(store, "regions")[:, 4] == 1).all()


@pytest.mark.parametrize("text", ["variable", "fixed", "bytes"])
def test_both_formats_and_all_texts_give_one_fingerprint(get, text):
    plain = get(Source(), 3, cell_type="fetal_heart").fingerprint
    for zarr_format in FORMATS:
        assert get(Source(text=text), zarr_format, cell_type="fetal_heart").fingerprint == plain


@pytest.mark.parametrize("stride", [1, 3, 4, 6, 15])
def test_blocks_chunks_and_strides_do_not_change_the_windows(get, stride, monkeypatch):
    source = Source()
    expected = source.data / np.where(source.data.max(0) > 0, source.data.max(0), 1)
    monkeypatch.setattr(get_zarr, "BLOCK_BYTES", 1)  # a chunk of 5 peaks at a time
    monkeypatch.setattr(get_zarr, "NAMES_AT_A_TIME", 7)
    store = get(source, stride=stride)
    numbers = {name: n for n, name in enumerate(source.peaks)}
    for window in range(len(store)):
        name = store.columns["chromosome"].names[rows(store, "chromosome")[window]]
        for region in np.flatnonzero(rows(store, "present")[window]):
            start, end = rows(store, "start")[window, region], rows(store, "end")[window, region]
            np.testing.assert_array_equal(
                rows(store, "regions")[window, region, :4], expected[numbers[f"{name}:{start}-{end}"]]
            )


def test_each_block_is_read_once_a_pass(get, monkeypatch):
    monkeypatch.setattr(get_zarr, "BLOCK_BYTES", 1)
    read, block = [], get_zarr.GetZarrStore.block
    monkeypatch.setattr(get_zarr.GetZarrStore, "block", lambda self, first: read.append(first) or block(self, first))
    get(Source(), stride=2)
    assert read == [0, 5, 10, 15, 20, 25, 30] * 2


def test_memory_does_not_grow_with_the_store(get, tmp_path, monkeypatch):
    """Beside coordinates, tens of bytes a peak, where a peak's scores are 400."""
    monkeypatch.setattr(get_zarr, "BLOCK_BYTES", 2**18)
    monkeypatch.setattr(get_zarr, "NAMES_AT_A_TIME", 1024)
    monkeypatch.setattr("ditlab.data.genome.region_windows.BATCH_BYTES", 2**18)
    monkeypatch.setattr("ditlab.data.stores.writer.SHARD_BYTES", 2**20)
    motifs = [f"M{n}" for n in range(100)]
    highest = []
    for peaks in (2_000, 2_000, 30_000):  # the first call pays for what is loaded once
        source = Source(peaks_of({"chr1": peaks}), motifs, scores(peaks, 100), {"T": np.ones(peaks)})
        path = source.write(tmp_path / f"{peaks}.zarr", chunk=500)
        del source
        tracemalloc.start()
        get(path, cell_type="T", regions=50)
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[2] - highest[1] < 28_000 * 100


def test_both_passes_tell_their_progress(get):
    seen = []
    get(Source(), progress=lambda *now: seen.append(now))
    last = {what: (done, total, unit) for what, done, total, unit in seen}
    assert last == {
        "reading names": (34, 34, "peaks"),
        "reading the largest scores": (34, 34, "peaks"),
        "writing": (9, 9, "windows"),
    }


def test_windows_that_reach_too_far_are_dropped_and_told(get, tmp_path):
    peaks = [*peaks_of({"chr2": 23}), *peaks_of({"chr10": 11}, gap=2_000_000)]
    store = get(Source(peaks))
    assert rows(store, "chromosome").tolist() == [0] * 6 + [1]
    assert rows(store, "present").sum(1).tolist() == [4] * 5 + [3] * 2
    assert "2 of 9 windows dropped (over 5,000,000 base pairs)" in store.manifest.source.note
    far = Source(peaks_of({"chr2": 23, "chr10": 11}, gap=9_000_000))
    shutil.rmtree(tmp_path / "stores")
    refused(
        get, far, "--max-span=5000000 drops all 9 windows of --regions=4 over 34 peaks", "lower --regions",
        tmp_path=tmp_path,
    )  # fmt: skip


def test_chunks_without_a_file_are_told(get, tmp_path):
    path = Source().write(tmp_path / "holes.zarr", 2)
    (path / "data" / "3.0").unlink()
    store = get(path)
    assert "1 chunks of data have no file and were read as zeros" in store.manifest.source.note
    assert not present(store, "regions")[15:20, :4].any()


def test_shards_without_a_file_are_told_and_others_are_not(get, tmp_path):
    source = Source()
    path = source.write(tmp_path / "shards.zarr", shards=(10, 4))
    assert "no file" not in get(path, name="whole").manifest.source.note
    (path / "data" / "c" / "1" / "0").unlink()
    store = get(path)
    assert "1 shards of data have no file and were read as zeros" in store.manifest.source.note
    assert not present(store, "regions")[10:20, :4].any()


def test_a_windows_largest_accessibility_is_kept(get):
    source = Source()
    store = get(source, cell_type="fetal_heart")
    atpm = source.atpm["fetal_heart"]
    whole = (rows(store, "regions")[:, :, 4] * rows(store, "largest_accessibility")[:, None])[rows(store, "present")]
    np.testing.assert_allclose(whole, atpm[atpm > 0], rtol=1e-6)
    assert "largest_accessibility" not in get(source).columns


def test_windows_that_share_regions_are_told_with_the_remedy(get):
    note = get(Source(), stride=2).manifest.source.note
    assert "neighbouring windows share regions: hold out whole chromosomes: data.hold_out: {column: chromosome" in note
    assert "share regions" not in get(Source(), stride=4).manifest.source.note


def put(position: tuple[int, int], value: float) -> Callable[[Source], None]:
    return lambda source: source.data.__setitem__(position, value)


def rename(peak: int, name: str) -> Callable[[Source], None]:
    return lambda source: source.peaks.__setitem__(peak, name)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda s: s.motifs.pop(), ["motif_names has shape (3,), and data has 4 motifs"]),
        (lambda s: setattr(s, "motifs", "CTCF"), ["motif_names has shape (), and data has 4 motifs"]),
        (lambda s: setattr(s, "data", np.ones((34, 0))), ["data has shape (34, 0) of float64", "one of each at least"]),
        (lambda s: setattr(s, "data", np.ones((0, 4))), ["data has shape (0, 4) of float64", "one of each at least"]),
        (lambda s: s.motifs.__setitem__(1, "CTCF"), ["holds 'CTCF' more than once"]),
        (lambda s: s.motifs.__setitem__(1, "accessibility"), ["names a motif accessibility"]),
        (lambda s: s.peaks.pop(), ["peak_names has shape (33,), and data has 34 peaks"]),
        (lambda s: setattr(s, "data", np.ones(34)), ["data has shape (34,) of float64"]),
        (put((7, 1), np.nan), ["holds nan for motif GATA of peak chr2:7010-7410 (number 7 from 0)"]),
        (put((30, 3), np.inf), ["holds inf for motif SOX of peak chr10:7010-7410"]),
        (put((8, 0), -0.5), ["holds -0.5 for motif CTCF of peak chr2:8010-8410"]),
        (rename(6, "chr2_6010_6410"), ["'chr2_6010_6410' as peak 6 (counted from 0)", "CHROMOSOME:START-END"]),
        (rename(6, ""), ["'' as peak 6"]),
        (rename(6, "chr2:6010-6010"), ["'chr2:6010-6010' as peak 6", "does not end behind its start"]),
        (rename(6, "chr2:5000-5400"), ["chr2:5010-5410 (peak 5) before chr2:5000-5400", "sort the peaks"]),
        (
            rename(33, "chr2:99999-100100"),
            ["chr2 in two places: chr2:22010-22410 (peak 22) and again chr2:99999-100100 (peak 33)"],
        ),
    ],
)
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_source_that_contradicts_itself_is_named(get, tmp_path, zarr_format, change, parts):
    source = Source()
    change(source)
    refused(get, source, *parts, zarr_format=zarr_format, tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("atpm", "parts"),
    [
        (np.ones(33), ["atpm/T has shape (33,), and data has 34 peaks"]),
        (np.ones((34, 2)), ["atpm/T has shape (34, 2)"]),
        (np.where(np.arange(34) == 3, np.nan, 1), ["atpm/T holds nan for peak chr2:3010-3410 (number 3 from 0)"]),
        (np.where(np.arange(34) == 3, -1, 1), ["atpm/T holds -1 for peak chr2:3010-3410"]),
        (np.zeros(34), ["--cell-type=T: all 34 peaks", "choose another cell type"]),
        (np.ones(34, complex), ["atpm/T holds complex128, and accessibilities are real numbers"]),
        (np.array(["0.1"] * 34), ["atpm/T holds <U3, and accessibilities are real numbers"]),
    ],
)
def test_accessibilities_that_are_none_are_named(get, tmp_path, atpm, parts):
    refused(get, Source(atpm={"T": atpm}), *parts, cell_type="T", tmp_path=tmp_path)


def test_an_unknown_cell_type_names_the_nearest(get, tmp_path):
    source = Source(atpm={name: np.ones(34) for name in ("fetal_heart", "fetal_lung", "K562")})
    say = "did you mean 'fetal_heart'"
    refused(get, source, "--cell-type=fetal_hart", say, cell_type="fetal_hart", tmp_path=tmp_path)
    refused(get, source, "it has K562, fetal_heart, fetal_lung", cell_type="xyz", tmp_path=tmp_path)
    refused(get, Source(atpm={}), "leave --cell-type out", cell_type="T", tmp_path=tmp_path)
    refused(get, source, "--accessibility=atpm needs a cell type", accessibility="atpm", tmp_path=tmp_path)


@pytest.mark.parametrize("key", ["data", "peak_names", "motif_names"])
@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_missing_key_is_named_with_what_there_is(get, tmp_path, key, zarr_format):
    path = Source().write(tmp_path / "part.zarr", zarr_format)
    shutil.rmtree(path / key)
    there = ", ".join(sorted({"atpm", "data", "peak_names", "motif_names"} - {key}))
    refused(get, path, f"holds no array '{key}' (it holds {there})", tmp_path=tmp_path)


def test_what_is_no_zarr_store_is_named(get, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zarr.json").write_text('{"zarr_format"')
    within = Source().write(tmp_path / "whole.zarr") / "data"
    for path in (tmp_path / "empty", tmp_path / "broken", tmp_path / "nowhere", within):
        refused(get, path, f"--source={path} is no zarr store", "name the folder of one", tmp_path=tmp_path)


@pytest.mark.parametrize("zarr_format", FORMATS)
def test_a_damaged_chunk_is_named(get, tmp_path, zarr_format):
    path = Source().write(tmp_path / "damaged.zarr", zarr_format)
    chunk = path / "data" / ("3.0" if zarr_format == 2 else "c/3/0")
    chunk.write_bytes(b"no chunk of any kind")
    refused(get, path, "data cannot be read from row 0", "copy the store again", tmp_path=tmp_path)


def without(*keys: str) -> Callable[[dict], dict]:
    return lambda metadata: {key: value for key, value in metadata.items() if key not in keys}


@pytest.mark.parametrize("key", ["data", "peak_names", "motif_names", "atpm/fetal_heart"])
@pytest.mark.parametrize(
    ("zarr_format", "change", "reason"),
    [
        (2, lambda m: {**m, "dtype": "nonsense"}, "nonsense"),
        (3, lambda m: {**m, "data_type": "nonsense"}, "nonsense"),
        (2, lambda m: {**m, "compressor": {"id": "lost"}}, "codec not available: ''lost''"),
        (3, lambda m: {**m, "codecs": [*m["codecs"], {"name": "lost", "configuration": {}}]}, "Unknown codec: 'lost'"),
        (2, without("shape"), "is no array"),
        (3, without("shape"), "'shape'"),
        (2, None, "Expecting property name"),
        (3, None, "Expecting property name"),
    ],
)
def test_metadata_that_cannot_be_read_are_named(get, tmp_path, zarr_format, change, reason, key):
    path = Source().write(tmp_path / "source.zarr", zarr_format)
    file = path / key / (".zarray" if zarr_format == 2 else "zarr.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))) if change else "{")
    refused(get, path, f"{path}: {key} ", reason, "copy the store again", cell_type="fetal_heart", tmp_path=tmp_path)


def test_what_is_not_asked_for_may_be_broken(get, tmp_path):
    path = Source().write(tmp_path / "source.zarr")
    (path / "atpm" / "fetal_heart" / "zarr.json").write_text("{")
    assert "fetal_heart" in get(path).manifest.source.note


def test_a_group_in_an_arrays_place_is_named(get, tmp_path):
    path = Source().write(tmp_path / "source.zarr")
    shutil.rmtree(path / "motif_names")
    zarr.open_group(path, mode="a").create_group("motif_names")
    refused(get, path, "motif_names is no array", tmp_path=tmp_path)


def test_without_zarr_the_command_that_brings_it_is_named(get, tmp_path, monkeypatch):
    path = Source().write(tmp_path / "source.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    refused(get, path, "pip install 'ditlab[get]'", tmp_path=tmp_path)


def test_chromosomes_may_have_colons_in_their_names():
    peaks = parse_peaks([["HLA-A*01:01:5-9", "HLA-A*01:01:7-12"], ["chrM:1-2"]], "x")
    assert peaks.chromosomes == ("HLA-A*01:01", "chrM")
    assert (peaks.start.tolist(), peaks.end.tolist()) == ([5, 7, 1], [9, 12, 2])
    assert peaks.name(2) == "chrM:1-2"


def test_peaks_that_are_no_text_are_refused():
    with pytest.raises(UserError, match="x holds values that are no text"):
        parse_peaks([[3, 4]], "x")
