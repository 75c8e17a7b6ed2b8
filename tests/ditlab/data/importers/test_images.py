"""Importing captioned images: from folders, tars and Parquet, whole or not at all, and the same
every time.
"""

import io
import shutil
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from PIL import Image

from ditlab.data.images.captions import decode_captions
from ditlab.data.import_blocks import BlockReceipt, BlockWork, InputBlock, ProcessExecutor
from ditlab.data.stores.bucketed_store import BucketedStore
from support.damage import refused
from support.datasets.photographs import captioned_folder, encoded, smooth, tar_file

SIZES = {
    "a": (48, 80),
    "b": (96, 160),
    "c": (64, 64),
    "d": (90, 30),
    "e": (80, 130),
    "f": (300, 310),
}
"""(height, width) by stem. At 64 in steps of 16: a, b and e to 48x80, c and f to 64x64, d to 80x16
or so.
"""


@pytest.fixture
def run(run):
    """Imports a source at 64 pixels in steps of 16."""
    return partial(run, resolution=64, sizes="aspect")


@pytest.fixture
def pictures():
    """PNGs by stem."""
    return {stem: encoded(smooth(*size, seed)) for seed, (stem, size) in enumerate(SIZES.items())}


@pytest.fixture
def folder(tmp_path, pictures):
    return captioned_folder(
        tmp_path / "photos",
        {f"{stem}.png": (content, f"a slope called {stem}") for stem, content in pictures.items()},
    )


def captions_by_size(store):
    return {part.name: decode_captions(part.tensor("caption").numpy()) for part in store.parts}


def left(home):
    """Return the contents of the stores' folder."""
    return sorted(path.name for path in home.stores.iterdir()) if home.stores.exists() else []


def test_each_image_comes_to_the_size_that_suits_it_with_its_caption(run, folder, pictures):
    store = run(folder)
    assert isinstance(store, BucketedStore) and len(store) == 6
    found = captions_by_size(store)
    assert found["48x80"] == ["a slope called a", "a slope called b", "a slope called e"]
    assert found["64x64"] == ["a slope called c", "a slope called f"]
    assert store.columns["caption"].shape == (512,)
    part = next(part for part in store.parts if part.name == "48x80")
    assert part.columns["image"].shape == (3, 48, 80) and part.columns["image"].value_range == (
        0,
        255,
    )
    whole = np.asarray(Image.open(io.BytesIO(pictures["a"]))).transpose(2, 0, 1)
    assert np.array_equal(part.tensor("image")[0].numpy(), whole)


def test_what_one_of_several_processes_refuses_is_the_imports_refusal(run, folder, home):
    (folder / "b.txt").write_bytes("größer".encode("latin1"))
    reason = r"its caption is not UTF-8: byte 0xf6 at offset 2 \(from 0\)"
    with refused(rf"b\.png: {reason}; correct it, or give"):
        run(folder, processes=2, unreadable="refuse")
    assert left(home) == []


def stop_after(number):
    """Make a progress callback that interrupts the import once some images are decoded."""

    def stop(what, done, total, unit=""):
        if what == "decoding" and done >= number:
            raise KeyboardInterrupt

    return stop


def test_an_import_that_ends_in_the_middle_leaves_the_old_set_whole_and_goes_on(
    run, folder, home, monkeypatch
):
    before = run(folder).fingerprint
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)  # a block for each image
    (folder / "a.txt").write_text("another slope")
    expected = run(folder, name="unbroken").fingerprint
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop_after(3))
    assert BucketedStore.open(home.stores / "set").fingerprint == before
    told: list[tuple[str, int, int | None, str]] = []
    again = run(folder, lambda *report: told.append(report))
    # the fourth was begun
    assert told == [("decoding", done, 6, "blocks") for done in range(4, 7)]
    assert again.fingerprint == expected != before
    assert not [path for path in (home.stores / "set").iterdir() if path.name.startswith(".")]


def test_an_import_of_another_source_or_option_begins_at_the_first_block(
    run, folder, home, monkeypatch
):
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)
    for change in ({"caption_length": 100}, {}):
        with pytest.raises(KeyboardInterrupt):
            run(folder, stop_after(3))
        if not change:
            (folder / "b.txt").write_text("another slope")
        told: list[tuple[str, int, int | None, str]] = []
        run(folder, lambda *report, told=told: told.append(report), **change)
        assert told == [("decoding", done, 6, "blocks") for done in range(7)]
        assert left(home) == ["set"]
        assert not [path for path in (home.stores / "set").iterdir() if path.name.startswith(".")]


def test_a_block_ends_while_the_next_one_is_begun(tmp_path):
    second_is_begun = threading.Event()

    class Rules:
        def convert(self, block, folder):
            def end():
                assert second_is_begun.wait(30)
                return BlockReceipt(block=block.number, rows=1, parts={})

            if block.number == 1:
                second_is_begun.set()
            return end

    blocks = [InputBlock(number, ()) for number in range(2)]
    receipts = ProcessExecutor(1).run(BlockWork(Rules(), tmp_path), blocks)
    assert [receipt.block for receipt in receipts] == [0, 1]


def test_an_import_that_ends_before_its_first_block_leaves_nothing(run, folder, home):
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop_after(0))
    assert left(home) == []


def test_a_plain_store_of_the_name_is_not_overwritten(run, folder, make_store, home, tmp_path):
    make_store(rows=3)
    home.stores.mkdir(parents=True)
    shutil.move(tmp_path / "random", home.stores / "set")
    with refused(r"set holds a store without buckets; choose another name"):
        run(folder, lambda *_: pytest.fail("decoded before it looked"))


def test_members_of_a_tar_belong_together_by_their_key(run, tmp_path, pictures):
    image, other = pictures["a"], pictures["c"]
    file = tar_file(
        tmp_path / "web.tar",
        {
            "x/01.json": b"{}",
            "x/01.png": image,
            "x/01.seg.png": other,
            "x/01.txt": b"first",
            "x/02.txt": b"second",
            "x/02.jpg": encoded(smooth(64, 64), "JPEG"),
            "y/02.cls": b"7",
            "y/02.WEBP": encoded(smooth(64, 64), "WEBP"),
            "y/02.txt": b"third",
        },
    )
    assert captions_by_size(run(file)) == {"48x80": ["first"], "64x64": ["second", "third"]}


def test_sides_can_be_bounded(run, folder):
    store = run(folder, min_side=48, max_side=64, missing_caption="skip")
    assert {part.name for part in store.parts} <= {"48x48", "48x64", "64x48", "64x64"}
    assert store.manifest.receipt.counts == {"too small": 1}


def test_decoding_processes_load_no_torch():
    code = (
        "import sys, ditlab.data.images.image_import\nprint({'torch', 'sklearn'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
