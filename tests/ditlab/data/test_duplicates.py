"""Equal contents of a source: counted by its import, never on both sides of a split."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.loading.held_out import hold_out_blocks, hold_out_rows, without_duplicates
from ditlab.data.splits import open_data
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.copies import open_remote_store
from ditlab.data.stores.duplicates import REPEATS, Duplicates, duplicate_rows, read_duplicates
from ditlab.data.stores.uploading import upload_store
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData, HoldOutClasses, MnistData
from ditlab.spec.importing import ImagesOptions, MnistOptions, TextOptions
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from support.datasets.odd_sources import below, lines


def save_pictures(folder, numbers, ending="png"):
    """Write a picture of a seed of its own for each number; equal numbers give equal pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, number in enumerate(numbers):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{place:04d}.{ending}")
    return folder


def imported(home, kind, options):
    (written,) = run_import(kind, ImportRequest(home.stores, home.caches, options))
    return written.store


def pictures(home, folder, name="set", **options):
    fixed = {"resolution": 16, "patch": 4, "sizes": "square", "processes": 1}
    if "label_from" not in options:
        fixed["caption_from"] = "none"
    return imported(home, "images", ImagesOptions(source=folder, name=name, **fixed, **options))


def contents(view, column="image"):
    """Return the bytes of each row of a view."""
    return [row.numpy().tobytes() for row in view.gather(column, np.arange(len(view)))]


def check_plain_split(home, num_rows):
    """Check that the store `set` is split as if no row had a copy."""
    splits = open_data(ArrowData(path="set"), home)
    train, held_out = hold_out_rows(num_rows, 0.1)
    assert splits.train.rows.tolist() == train.tolist()
    assert splits.held_out.rows.tolist() == held_out.tolist()


@pytest.mark.parametrize("order", ["full", "interleaved"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_pictures_and_their_copies_are_on_one_side(home, tmp_path, order, share):
    store = pictures(home, save_pictures(tmp_path / "files", [*range(100), *range(100)]))
    assert store.manifest.receipt.changed == {REPEATS: 100}
    spec = ArrowData(path="set", hold_out=share)
    if order == "interleaved":
        spec = spec.model_copy(update={"order": InterleavedOrderSpec(streams=1)})
    splits = open_data(spec, home)
    train = contents(splits.train)
    held_out = contents(splits.held_out)
    assert not set(train) & set(held_out)
    if order == "full":  # copies go with the first of them
        assert len(train) + len(held_out) == 200
        assert len(held_out) == 200 * share
    else:  # blocks stay whole, and the copies of what they hold do not train
        dropped = 200 - len(held_out) - len(train)
        assert dropped and f"{dropped} samples repeat a held-out one" in splits.note


def test_kept_duplicates_are_split_as_before(home, tmp_path):
    folder = save_pictures(tmp_path / "files", [*range(100), *range(100)])
    store = pictures(home, folder, keep_duplicates=True)
    assert store.manifest.receipt.changed == {REPEATS: 100}
    check_plain_split(home, 200)
    assert pictures(home, folder, name="other").fingerprint != store.fingerprint


def test_a_store_without_duplicates_says_and_moves_nothing(home, tmp_path):
    store = pictures(home, save_pictures(tmp_path / "files", range(100)))
    assert store.manifest.receipt.changed == {}
    assert not store.parts[0].manifest.attachments
    assert not len(read_duplicates(store))
    check_plain_split(home, 100)


def test_equal_pixels_of_other_files_and_captions_are_duplicates(home, tmp_path):
    """Pixels are compared as they are stored: not files, captions or classes."""
    folder = tmp_path / "files"
    save_pictures(folder / "cat", range(20))
    save_pictures(folder / "dog", range(10, 30), "bmp")
    store = pictures(home, folder, label_from="folder")
    assert len(store) == 40
    assert store.manifest.receipt.changed == {REPEATS: 10}
    classes = HoldOutClasses(column="label", values=("dog",))
    splits = open_data(ArrowData(path="set", hold_out=classes), home)
    assert (len(splits.held_out), len(splits.train)) == (20, 10)
    assert "10 samples repeat a held-out one" in splits.note


def test_a_source_of_one_picture_is_refused_unless_its_copies_are_kept(home, tmp_path):
    folder = save_pictures(tmp_path / "files", [7] * 30)
    pictures(home, folder)
    with pytest.raises(UserError, match=r"leaves nothing to train on.*--keep-duplicates"):
        open_data(ArrowData(path="set"), home)
    assert len(open_data(ArrowData(path="set", hold_out=0.0), home).train) == 30
    pictures(home, folder, keep_duplicates=True)
    assert len(open_data(ArrowData(path="set"), home).train) == 27


def test_duplicates_travel_with_a_store(home, tmp_path):
    store = pictures(home, save_pictures(tmp_path / "files", [*range(30), *range(30)]))
    place = f"file://{tmp_path}/there"
    upload_store(store, place)
    copy = open_remote_store("data.path", place, home)
    assert read_duplicates(copy).firsts.tolist() == list(range(30))


def test_duplicates_of_mnists_form(home, tmp_path, write_idx):
    digits = np.zeros((40, 28, 28))
    digits[:, 0, 0] = np.arange(40) % 20
    write_idx(tmp_path / "train-images-idx3-ubyte", digits)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(40) % 10)
    store = imported(home, "mnist", MnistOptions(source=tmp_path, checksum=False))
    assert f"20 {REPEATS}" in store.manifest.source.note
    splits = open_data(MnistData(hold_out=0.25), home)
    assert len(splits.held_out) == 10
    assert not set(contents(splits.train)) & set(contents(splits.held_out))


def texts(home, folder, **options):
    return imported(home, "text", TextOptions(source=str(folder), length=16, **options))


def test_texts_that_repeat_are_stored_once(home, tmp_path):
    words = [f"text {number} of {number * 7}, and its end" for number in range(20)]
    source = tmp_path / "texts.jsonl"
    source.write_text(lines(*({"text": text} for text in words * 2)))
    twice = texts(home, source, name="twice", keep_duplicates=True)
    assert twice.manifest.text.documents == 40
    store = texts(home, source, name="once")
    (level,) = [each for each in store.manifest.receipt.levels if each.unit == "documents"]
    assert (level.used["documents"], level.left_out) == (20, {"repeating an earlier one": 20})
    assert store.manifest.receipt.listed[0].startswith("texts.jsonl, line 21: repeating")
    source.write_text(lines(*({"text": text} for text in words)))
    assert texts(home, source, name="alone").fingerprint == store.fingerprint


@pytest.mark.parametrize("processes", [1, 2])
def test_texts_of_several_blocks_are_compared_as_wholes(home, tmp_path, monkeypatch, processes):
    """A file that is cut is no duplicate of one that shares a part with it alone."""
    monkeypatch.setattr("ditlab.data.text.text_import.block_bytes", lambda total: 400)
    whole = "".join(f"line {number}\n" for number in range(100))
    other = whole[:-9] + "line 00!\n"
    files = {"a.txt": whole, "b.txt": other, "c.txt": whole, "d.txt": "short", "e.txt": "short"}
    store = texts(home, below(files)(tmp_path), processes=processes)
    assert store.manifest.text.documents == 3
    assert store.manifest.text.bytes == 2 * len(whole) + len("short")
    assert store.manifest.receipt.listed == (
        "c.txt: repeating an earlier one",
        "e.txt: repeating an earlier one",
    )


def test_a_large_group_is_never_cut_and_a_larger_share_holds_out_more(home):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 30, 400).astype(np.uint64)
    duplicates = duplicate_rows(numbers)
    assert len(duplicates) == 400 - len(set(numbers.tolist()))
    before = set()
    for share in (0.05, 0.1, 0.3, 0.5):
        train, held_out = hold_out_rows(400, share, duplicates=duplicates)
        assert not set(numbers[train]) & set(numbers[held_out])
        assert sorted([*train, *held_out]) == list(range(400))
        assert len(held_out) >= 400 * share
        assert before <= set(held_out.tolist())
        before = set(held_out.tolist())


def test_computed_rows_without_some_of_them():
    """Rows of blocks, less the copies of held-out ones, are found and counted as before."""

    class Part:
        layout = BlockLayout([300, 41], 16)

    class Parts:
        parts = (Part(), Part())

    train, held_out = hold_out_blocks(Parts(), 0.1)
    rows = held_out[np.arange(len(held_out))]
    held = np.sort(rows)[:12]
    there = train[np.arange(len(train))]
    copies = there[[0, 5, 6, 7, 100, 101, 200, 300, 400, 500, 501, len(there) - 1]]
    pairs = np.sort(np.stack([held, copies]), axis=0)
    order = np.argsort(pairs[1])
    duplicates = Duplicates(pairs[1][order], pairs[0][order])
    left = without_duplicates(train, duplicates)
    expected = np.setdiff1d(there, copies)
    assert left[np.arange(len(left))].tolist() == expected.tolist()
    every = np.arange(2 * 341 + 1)
    assert left.num_before(every).tolist() == np.searchsorted(expected, every).tolist()
    assert left.key != train.key
    assert without_duplicates(train, replace(duplicates, rows=rows[:0], firsts=rows[:0])) is train
