"""Splits of an experiment's data: which store, which rows train, which are held out."""

import numpy as np
import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.named_stores import store_folder
from ditlab.data.region_windows import make_peaks, plan_windows, region_columns, window_batches
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import class_column
from ditlab.parts import importers
from ditlab.spec.data import ArrowData, DigitsData, HoldOutClasses, MnistData, MotifsData, TextData
from ditlab.spec.importing import MnistOptions
from support.damage import refused
from support.datasets.writing import written
from support.forked import Forked


def test_digits_need_nothing_and_are_scikit_learns(home):
    from sklearn.datasets import load_digits

    splits = open_data(DigitsData(), home)
    store = splits.train.store
    assert (len(splits.train), len(splits.held_out)) == (1617, 180)
    assert splits.name == "digits" and splits.note == ""
    assert np.array_equal(store.tensor("image")[:, 0].numpy(), load_digits().images)
    assert np.array_equal(store.tensor("label").numpy(), load_digits().target)
    assert store.columns["image"].value_range == (0, 16)
    assert open_data(DigitsData(), home).fingerprint == splits.fingerprint


def test_two_processes_may_write_built_in_stores_at_once(home):
    """Both processes write the same files of digits and generated regions, without strays."""
    code = (
        "import sys; from pathlib import Path; from ditlab.home import Home; from "
        "ditlab.data.splits import open_data;from ditlab.spec.data import DigitsData, "
        "MotifsData; spec = MotifsData.model_validate_json(sys.argv[2]);print('ready', "
        "flush=True); sys.stdin.readline();print(*(open_data(each, "
        "Home(Path(sys.argv[1]))).fingerprint for each in (DigitsData(), spec)))"
    )
    motifs = MotifsData(motifs=5, chromosomes=4, peaks=40, regions=6)
    both = [Forked(code, str(home.root), motifs.model_dump_json()) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.go()
    answers = {process.stdout.read().strip() for process in both}
    assert [process.wait(60) for process in both] == [0, 0]
    expected = [open_data(spec, home).fingerprint for spec in (DigitsData(), motifs)]
    assert answers == {" ".join(expected)}
    files = [path.suffix for store in home.stores.iterdir() for path in store.iterdir()]
    assert sorted(files) == [".arrow", ".arrow", ".bin", ".bin", ".json", ".json"]


def test_any_store_by_path(make_store, home):
    store = make_store(rows=50)
    splits = open_data(ArrowData(path=str(store.path), hold_out=0.2), home)
    assert (len(splits.train), len(splits.held_out)) == (40, 10)
    assert splits.fingerprint == store.fingerprint
    nothing_out = open_data(ArrowData(path=str(store.path), hold_out=0.0), home)
    assert len(nothing_out.held_out) == 0 and "holds nothing out" in nothing_out.note


@pytest.fixture
def mnist(tmp_path, home, write_idx):
    """Imports files of MNIST's form: 300 train, 100 test."""
    folder = tmp_path / "idx"
    folder.mkdir()

    def make(*splits):
        for split, stem, rows in (("train", "train", 300), ("test", "t10k", 100)):
            if split in splits:
                digits = np.zeros((rows, 28, 28))
                digits[:, 0, :2] = np.stack(divmod(np.arange(rows), 256), axis=1)
                write_idx(folder / f"{stem}-images-idx3-ubyte", digits)
                write_idx(folder / f"{stem}-labels-idx1-ubyte", np.arange(rows) % 10)
        options = MnistOptions(source=folder, checksum=False)
        run_import("mnist", ImportRequest(home.stores, home.caches, options))

    return make


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_that_was_not_imported_names_the_command(home, split):
    with refused(rf"data\.split={split}.*`ditlab data import mnist --source DIR`"):
        open_data(MnistData(split=split), home)


@pytest.mark.parametrize(
    ("files", "options", "train", "held_out"),
    [
        ("train test", {}, 300, 100),
        ("train", {}, 300, 0),
        ("train", {"hold_out": 0.1}, 270, 30),
        ("test", {"split": "test"}, 90, 10),
    ],
)
def test_mnists_train_files_are_evaluated_on_its_test_files(
    home, mnist, files, options, train, held_out
):
    """Without test files, what is asked for is held out; alone, they hold out a tenth."""
    mnist(*files.split())
    splits = open_data(MnistData(**options), home)
    assert (len(splits.train), len(set(splits.held_out.rows))) == (train, held_out)
    assert ("nothing is held out" in splits.note) == (held_out == 0)


def test_an_unknown_kind_is_answered_with_the_known_ones(home):
    assert list(importers()) == ["digits", "get", "images", "mnist", "text"]
    with refused("no importer 'mnits'; did you mean 'mnist'"):
        run_import("mnits", ImportRequest(home.stores, home.caches, MnistOptions()))


def test_a_store_by_name(make_store, home, tmp_path, monkeypatch):
    """Stores in the working directory come first; a folder there without a store does not hide the
    home's.
    """
    monkeypatch.chdir(tmp_path)
    with refused(r"known holds no store.*or one that `ditlab data list` lists"):
        open_data(ArrowData(path="known"), home)
    theirs = make_store(rows=20, name="home/stores/known")
    assert store_folder("known", home) == theirs.path
    assert len(open_data(ArrowData(path="known", hold_out=0.0), home).train) == 20
    (tmp_path / "known").mkdir()
    assert store_folder("known", home) == theirs.path
    make_store(rows=30, name="known")
    assert store_folder("known", home) == store_folder("./known", home) == tmp_path / "known"
    assert store_folder("other/known", home) == tmp_path / "other" / "known"


def test_a_share_of_overlapping_windows_gives_a_note(home, tmp_path):
    for stride in (3, 4, 5):
        path = str(write_windows(tmp_path / f"windows-{stride}", stride).path)
        note = open_data(ArrowData(path=path), home).note
        for words in (
            "neighbouring windows share regions",
            "data.hold_out: {column: chromosome, values: [...]}",
        ):
            assert (words in note) == (stride == 3)
        classes = HoldOutClasses(column="chromosome", values=("chr2",))
        assert open_data(ArrowData(path=path, hold_out=classes), home).note == ""


def test_chromosomes_and_cell_types_are_left_out_and_named(home, tmp_path):
    """Three chromosomes with 2, 3 and 4 windows of each of two cell types; a row of either is held
    out once.
    """
    columns = {
        "chromosome": class_column("", 3, ("chr1", "chr2", "chr3")),
        "cell_type": class_column("", 3, ("B", "T", "none")),
    }
    rows = {"chromosome": np.repeat([0, 1, 2], [4, 6, 8]), "cell_type": np.arange(18) % 2}
    path = str(written(tmp_path / "cells", columns, rows).path)

    def split(*classes):
        return open_data(ArrowData(path=path, hold_out=list(classes)), home)

    chromosome = {"column": "chromosome", "values": ["chr2"]}
    both = split(chromosome, {"column": "cell_type", "values": ["T"]})
    assert (len(both.train), len(both.held_out)) == (2 + 4, 6 + 2 + 4)
    assert both.left_out == {"chromosome": ("chr2",), "cell_type": ("T",)}
    kept = {name: values[both.train.rows].tolist() for name, values in rows.items()}
    assert kept == {"chromosome": [0, 0, 2, 2, 2, 2], "cell_type": [0] * 6}
    assert open_data(ArrowData(path=path), home).left_out == {}
    with refused(r"data\.hold_out of chromosome and chromosome together"):
        split(chromosome, {**chromosome, "values": ["chr1", "chr3"]})


def write_windows(path, stride):
    """Windows of 4 of the 1,000 peaks of one chromosome (at most 300 windows before their
    neighbours), 10 of another; peaks of the same place on both, and peaks that overlap each other,
    are none that windows share."""
    start = np.arange(1000, dtype=np.int64) * 100
    peaks = [make_peaks(0, start, start + 150), make_peaks(1, start[:10], start[:10] + 150)]
    plan = plan_windows(np.concatenate(peaks), 4, stride)
    values = np.ones((1010, 1), np.float32)
    batches = window_batches(
        np.concatenate(peaks), plan, 4, 1, lambda first, stop: values[first:stop]
    )
    return written(path, region_columns(4, ("A",), (1.0,), ("chr1", "chr2")), *batches)


def test_packing_reaches_the_codec_and_needs_an_end_token(make_store, home):
    home.ensure()
    spec = TextData(length=64, packing="masked")
    text = open_data(spec, home).text
    assert text is not None and (text.packing, text.end) == ("masked", 255)
    joined = open_data(spec.model_copy(update={"packing": "joined"}), home).text
    assert joined is not None and joined.packing == "joined"
    store = make_store(rows=50)
    with refused(r"data\.packing=masked needs the token that ends a document, and the store"):
        open_data(ArrowData(path=str(store.path), packing="masked"), home)
