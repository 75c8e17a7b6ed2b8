"""Importing captioned images: from folders, tars and Parquet, whole or not at all, and the same
every time.
"""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from ditlab.data.images.captions import decode_captions
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError
from ditlab.progress import ignore_progress
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, encoded, parquet_file, smooth, tar_file

Import = Callable[..., WrittenStore]

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
def run(home, tmp_path) -> Import:
    """Imports a source at 64 pixels in steps of 16, in this process."""

    def run(source: Path, progress: Any = ignore_progress, **options: Any) -> WrittenStore:
        chosen = {"resolution": 64, "patch": 4, "processes": 1, "name": "set"} | options
        request = ImportRequest(
            home.stores, home.caches, ImagesOptions(source=source, **chosen), progress
        )
        (imported,) = run_import("images", request)
        return imported

    return run


@pytest.fixture
def pictures() -> dict[str, bytes]:
    """PNGs by stem."""
    return {stem: encoded(smooth(*size, seed)) for seed, (stem, size) in enumerate(SIZES.items())}


@pytest.fixture
def folder(tmp_path, pictures) -> Path:
    return captioned_folder(
        tmp_path / "photos",
        {f"{stem}.png": (content, f"a slope called {stem}") for stem, content in pictures.items()},
    )


def captions_by_size(store: BucketedStore) -> dict[str, list[str]]:
    return {part.name: decode_captions(part.tensor("caption").numpy()) for part in store.parts}


def left(home) -> list[str]:
    """Return the contents of the stores' folder."""
    return sorted(path.name for path in home.stores.iterdir()) if home.stores.exists() else []


def test_each_image_comes_to_the_size_that_suits_it_with_its_caption(run, folder, pictures):
    imported = run(folder)
    store = imported.store
    assert isinstance(store, BucketedStore) and len(store) == 6
    found = captions_by_size(store)
    assert found["48x80"] == ["a slope called a", "a slope called b", "a slope called e"]
    assert found["64x64"] == ["a slope called c", "a slope called f"]
    assert list(chain.from_iterable(found.values())) == decode_captions(
        store.tensor("caption").numpy()
    )
    assert store.columns["caption"].shape == (512,)
    part = next(part for part in store.parts if part.name == "48x80")
    assert part.columns["image"].shape == (3, 48, 80) and part.columns["image"].value_range == (
        0,
        255,
    )
    whole = np.asarray(Image.open(io.BytesIO(pictures["a"]))).transpose(2, 0, 1)
    assert np.array_equal(part.tensor("image")[0].numpy(), whole)
    assert (
        f"{store.columns['image'].statistics.count:,} bytes of decoded pixels"
        in store.manifest.source.note
    )


def test_importing_again_changes_nothing_and_another_set_takes_the_place(run, folder):
    first = run(folder)
    again = run(folder)
    assert again.store.fingerprint == first.store.fingerprint
    assert run(folder, name="other").store.fingerprint == first.store.fingerprint
    (folder / "a.txt").write_text("another slope")
    other = run(folder)
    assert other.store.fingerprint != first.store.fingerprint
    assert "another slope" in decode_captions(other.store.tensor("caption").numpy())


def test_every_number_of_processes_writes_the_same(run, folder):
    (folder / "bad.png").write_bytes(b"no image")
    (folder / "bad.txt").write_text("none")
    one, two = (run(folder, processes=number, name=f"with-{number}").store for number in (1, 2))
    assert (
        one.fingerprint == two.fingerprint
        and one.manifest.receipt.listed == two.manifest.receipt.listed
    )


def test_folders_tars_and_parquet_of_the_same_images_give_the_same_set(
    run, folder, pictures, tmp_path
):
    texts = {stem: f"a slope called {stem}" for stem in pictures}
    members = {
        f"{s}.{kind}": c
        for s in pictures
        for kind, c in (("png", pictures[s]), ("txt", texts[s].encode()))
    }
    tars = tmp_path / "tars"
    tars.mkdir()
    tar_file(tars / "0.tar", dict(list(members.items())[:6]))
    tar_file(tars / "1.tar", dict(list(members.items())[6:]))
    images = {
        "plain.parquet": pa.array(pictures.values(), pa.binary()),
        "face.parquet": [{"bytes": content, "path": None} for content in pictures.values()],
    }
    expected = run(folder, name="folder").store.fingerprint
    assert run(tars, name="tars").store.fingerprint == expected
    for name, column in images.items():
        file = parquet_file(
            tmp_path / name, caption=list(texts.values()), number=list(range(6)), image=column
        )
        assert run(file, name=name).store.fingerprint == expected


def test_images_of_one_size_are_a_bucketed_store_too(run, tmp_path):
    source = captioned_folder(
        tmp_path / "one", {f"{n}.png": (smooth(64, 64, n), "same") for n in range(3)}
    )
    store = run(source).store
    assert isinstance(store, BucketedStore) and [len(part) for part in store.parts] == [3]


def test_unusable_images_are_skipped_counted_and_listed(run, folder):
    jpeg = encoded(smooth(100, 100), "JPEG")
    captioned_folder(
        folder,
        {
            "deep/cut.jpg": (jpeg[: len(jpeg) // 2], "half a slope"),
            "deep/text.png": (b"hello", "no slope"),
            "small.webp": (encoded(smooth(15, 900), "WEBP"), "a line"),
            "alone.png": (smooth(64, 64), None),
            "empty.png": (smooth(64, 64), " \n"),
            **{f"many/{n:02d}.bmp": (b"", "nothing") for n in range(20)},
        },
    )
    store = run(folder, missing_caption="skip").store
    assert len(store) == 6
    assert store.manifest.receipt.counts == {"missing caption": 2, "too small": 1, "unreadable": 22}
    receipt = store.manifest.receipt
    listed = receipt.listed
    assert len(listed) == 25
    assert listed[0] == "alone.png: missing caption (no caption)"
    assert "small.webp: too small (900x15 pixels)" in listed
    assert "deep/text.png: unreadable (no BMP, JPEG, PNG, TIFF or WEBP image)" in listed


def test_a_missing_caption_is_refused_by_default(run, folder, home):
    (folder / "c.txt").unlink()
    with pytest.raises(
        UserError,
        match=r"c\.png has no caption; .*a \.txt file of the same stem.*--missing-caption",
    ):
        run(folder)
    assert left(home) == []


def test_an_unreadable_image_is_refused_on_request(run, folder, home):
    (folder / "d.png").write_bytes(b"no image")
    with pytest.raises(
        UserError, match=r"d\.png: no BMP, .*; correct it, or give --unreadable skip\."
    ):
        run(folder, unreadable="refuse")
    assert left(home) == []


def test_a_set_without_a_usable_image_is_refused(run, tmp_path, home):
    source = captioned_folder(
        tmp_path / "tiny", {f"{n}.png": (smooth(8, 8), "small") for n in range(2)}
    )
    with pytest.raises(
        UserError,
        match=r"no image that can be used \(2 too small\), the first being 0\.png: too small",
    ):
        run(source)
    assert left(home) == []


def test_captions_beyond_the_limit_are_cut_between_characters_and_counted(run, tmp_path):
    texts = ["ein großer Hund", "kurz", "länger als gewünscht"]
    source = captioned_folder(
        tmp_path / "de", {f"{n}.png": (smooth(64, 64), text) for n, text in enumerate(texts)}
    )
    store = run(source, caption_length=9).store
    assert decode_captions(store.tensor("caption").numpy()) == ["ein groß", "kurz", "länger a"]
    assert store.manifest.receipt.counts == {"captions cut": 2}
    assert store.columns["caption"].shape == (9,)


def test_a_caption_in_another_encoding_costs_its_image_alone(run, folder, home):
    (folder / "b.txt").write_bytes("größer".encode("latin1"))
    reason = "its caption is not UTF-8: byte 0xf6 at offset 2 (from 0)"
    with pytest.raises(UserError, match=rf"b\.png: {re.escape(reason)}; correct it, or give"):
        run(folder, processes=2, unreadable="refuse")
    assert left(home) == []
    store = run(folder, processes=2).store
    assert len(store) == 5 and store.manifest.receipt.listed == (f"b.png: unreadable ({reason})",)


def test_images_of_one_stem_share_a_caption_and_hidden_files_are_left_alone(run, tmp_path):
    source = captioned_folder(tmp_path / "twice", {"x.png": (smooth(64, 64), "one slope")})
    (source / "x.JPG").write_bytes(encoded(smooth(64, 64, 1), "JPEG"))
    (source / "._x.png").write_bytes(b"of a Mac")
    captioned_folder(source / ".trash", {"y.png": (smooth(64, 64), "gone")})
    assert decode_captions(run(source).store.tensor("caption").numpy()) == ["one slope"] * 2


def stop_after(number: int) -> Callable[..., None]:
    """Make a progress callback that interrupts the import once some images are decoded."""

    def stop(what: str, done: int, total: int | None, unit: str = "") -> None:
        if what == "decoding" and done >= number:
            raise KeyboardInterrupt

    return stop


def test_an_import_that_ends_in_the_middle_leaves_the_old_set_whole_and_goes_on(
    run, folder, home, monkeypatch
):
    before = run(folder).store.fingerprint
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)  # a block for each image
    (folder / "a.txt").write_text("another slope")
    expected = run(folder, name="unbroken").store.fingerprint
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop_after(3))
    assert BucketedStore.open(home.stores / "set").fingerprint == before
    told: list[tuple[str, int, int | None, str]] = []
    again = run(folder, lambda *report: told.append(report))
    assert told == [("decoding", done, 6, "blocks") for done in range(3, 7)]
    assert again.store.fingerprint == expected != before
    assert not [path for path in (home.stores / "set").iterdir() if path.name.startswith(".")]


def test_another_source_or_option_begins_anew(run, folder, home, monkeypatch):
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)
    for change in ({"caption_length": 100}, {}):
        with pytest.raises(KeyboardInterrupt):
            run(folder, stop_after(3))
        if not change:
            (folder / "b.txt").write_text("another slope")
        told: list[tuple[str, int, int | None, str]] = []
        run(folder, lambda *report, told=told: told.append(report), **change)
        assert len(told) == 7 and left(home) == ["set"]
        assert not [path for path in (home.stores / "set").iterdir() if path.name.startswith(".")]


def test_an_import_that_ends_before_its_first_block_leaves_nothing(run, folder, home):
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop_after(0))
    assert left(home) == []


def test_a_plain_store_of_the_name_is_not_overwritten(run, folder, make_store, home, tmp_path):
    make_store(rows=3)
    home.stores.mkdir(parents=True)
    shutil.move(tmp_path / "random", home.stores / "set")
    with pytest.raises(UserError, match=r"set holds a store without buckets; choose another name"):
        run(folder, lambda *_: pytest.fail("decoded before it looked"))


def test_progress_counts_blocks(run, folder, monkeypatch):
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)
    told: list[tuple[str, int, int | None, str]] = []
    run(folder, lambda *report: told.append(report))
    assert told == [("decoding", done, 6, "blocks") for done in range(7)]


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
    assert captions_by_size(run(file).store) == {"48x80": ["first"], "64x64": ["second", "third"]}


def test_a_tar_that_ends_before_its_first_image_is_refused(run, tmp_path, pictures, home):
    file = tar_file(
        tmp_path / "web.tar", {"a.txt": b"a slope", "a.png": pictures["f"], "b.txt": b"another"}
    )
    file.write_bytes(file.read_bytes()[:3000])
    reason = r"web\.tar: damaged file \(the rest, from byte 1,024 on: unexpected end of data\)"
    with pytest.raises(UserError, match=rf"\(1 damaged file\), the first being {reason}; name"):
        run(file)
    assert left(home) == []


def test_a_member_without_a_caption_names_the_tar_and_the_member(run, tmp_path, pictures):
    file = tar_file(tmp_path / "web.tar", {"a.png": pictures["a"], "b.txt": b"of another"})
    with pytest.raises(
        UserError, match=r"web\.tar: a\.png has no caption; write one into a \.txt file"
    ):
        run(file)


def test_rows_of_parquet_without_an_image_or_a_caption(run, tmp_path, pictures):
    file = parquet_file(
        tmp_path / "t.parquet",
        picture=[
            {"bytes": pictures["c"], "path": "c"},
            {"bytes": None, "path": "d"},
            None,
            {"bytes": pictures["c"]},
        ],
        words=["one", "two", "three", None],
    )
    names = {"image_column": "picture", "caption_column": "words"}
    with pytest.raises(
        UserError, match=r"t\.parquet, row 3 has no caption; write one into the column of"
    ):
        run(file, **names)
    store = run(file, missing_caption="skip", **names).store
    assert decode_captions(store.tensor("caption").numpy()) == ["one"]
    assert store.manifest.receipt.counts == {"missing caption": 1, "unreadable": 2}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"image": [b"x"], "text": ["a"]}, {}, r"has no column 'caption'; .*Give --caption-column"),
        ({"img": [b"x"], "caption": ["a"]}, {}, r"has no column 'image'; .*Give --image-column"),
        ({"image": ["url"], "caption": ["a"]}, {}, r"'image' holds str"),
        ({"image": [b"x"], "caption": [[1, 2]]}, {}, r"'caption' holds list"),
        (
            {"image": [b"x"], "caption": pa.array([b"gr\xf6n"], pa.binary())},
            {},
            r"the first being t\.parquet, row 0: unreadable \(its caption is not UTF-8: byte 0xf6 at offset 2",
        ),
    ],
)
def test_parquet_that_does_not_fit(run, tmp_path, columns, options, message):
    with pytest.raises(UserError, match=message):
        run(parquet_file(tmp_path / "t.parquet", **columns), **options)


def test_sources_without_images_are_refused(run, tmp_path, folder, pictures):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UserError, match=r"empty holds no \.bmp, \.jfif, .*, \.webp, \.tar or \.parquet file"
    ):
        run(tmp_path / "empty")
    tar_file(folder / "more.tar", {"z.png": pictures["a"]})
    with pytest.raises(UserError, match=r"holds images and \.tar files; name a folder of one kind"):
        run(folder)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(
        UserError, match=r"broken\.parquet: damaged file \(is no .parquet file that can be read \("
    ):
        run(tmp_path / "broken.parquet")
    with pytest.raises(UserError, match=r"holds no image that can be used \(1 not read \(\.md\)\)"):
        run(tar_file(tmp_path / "none.tar", {"readme.md": b"nothing"}))


def test_options_that_leave_no_size(run, folder):
    with pytest.raises(
        UserError, match=r"--resolution=64 leaves no size: .*--step=128 .*raise --resolution"
    ):
        run(folder, step=128)
    with pytest.raises(ValueError, match=r"--step=30 is no multiple of --patch=4"):
        run(folder, step=30)


def test_sides_can_be_bounded(run, folder):
    store = run(folder, min_side=48, max_side=64, missing_caption="skip").store
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
