"""Captions and classes of imported images: from names of folders, and from lines of JSON."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ditlab.data.images.captions import decode_captions
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, encoded, parquet_file, smooth, tar_file

Import = Callable[..., AnyStore]


@pytest.fixture
def run(home) -> Import:
    """Imports a source as squares of 16 pixels, in this process."""

    def run(source: Path, **options: Any) -> AnyStore:
        chosen = {
            "resolution": 16,
            "patch": 4,
            "sizes": "square",
            "processes": 1,
            "name": "set",
        } | options
        request = ImportRequest(home.stores, home.caches, ImagesOptions(source=source, **chosen))
        (imported,) = run_import("images", request)
        return imported.store

    return run


@pytest.fixture
def pets(tmp_path) -> Path:
    """Class folders: two cats, a dog below a folder of its own, one dog that is no picture, a
    broken bird.
    """
    names = ("tabby_cat/2_b.png", "tabby_cat/1_a.png", "dog/old/x.png")
    source = captioned_folder(
        tmp_path / "pets", {name: (smooth(20, 24, seed), None) for seed, name in enumerate(names)}
    )
    captioned_folder(source, {"dog/text.png": (b"no picture", None), "bird/empty.png": (b"", None)})
    return source


def captions(store: AnyStore) -> list[str]:
    return decode_captions(store.tensor("caption").numpy())


def test_class_folders_become_classes_numbered_by_name(run, pets):
    store = run(pets, label_from="folder")
    assert (
        store.columns["label"].names == ("bird", "dog", "tabby_cat")
        and store.columns["label"].num_classes == 3
    )
    assert store.tensor("label").tolist() == [1, 2, 2]
    assert store.columns["label"].statistics.class_counts == (0, 1, 2)
    assert store.columns["image"].shape == (3, 16, 16) and "caption" not in store.columns
    assert store.manifest.receipt.counts == {"unreadable": 2}
    assert store.manifest.description == "3 images of 3 classes in 1 size"


def test_tars_of_class_folders_give_the_same(run, pets, tmp_path):
    expected = run(pets, label_from="folder").fingerprint
    files = sorted(file for file in pets.rglob("*") if file.is_file())
    tar = tar_file(
        tmp_path / "pets.tar", {str(file.relative_to(pets)): file.read_bytes() for file in files}
    )
    assert run(tar, label_from="folder").fingerprint == expected
    dotted = tar_file(
        tmp_path / "dot.tar", {f"./{file.relative_to(pets)}": file.read_bytes() for file in files}
    )
    assert run(dotted, label_from="folder").fingerprint == expected


def lines(file: Path, *records: Any) -> Path:
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def test_lines_of_json_are_captions(run, pets, tmp_path):
    named = {
        "dog/old/x.png": "an old dog",
        "./tabby_cat/1_a.png": "größer",
        "tabby_cat/2_b.png": "",
        "dog/text.png": "x",
    }
    lines(
        pets / "metadata.jsonl",
        *({"file_name": name, "text": text} for name, text in named.items()),
    )
    options = {"caption_column": "text"}
    store = run(pets, missing_caption="skip", label_from="folder", **options)
    assert captions(store) == ["an old dog", "größer"] and store.tensor("label").tolist() == [1, 2]
    assert store.manifest.receipt.counts == {"missing caption": 2, "unreadable": 1}
    with pytest.raises(
        UserError, match=r"bird/empty\.png has no caption; add a line for it to the metadata file"
    ):
        run(pets, **options)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"file_name": "y.png", "caption": "a"}],
            r"metadata\.jsonl names y\.png, which --source=.*pets does not hold",
        ),
        (
            [{"file_name": f"{n}.png", "caption": "a"} for n in range(3)],
            r"names 0\.png and 2 more, which",
        ),
        (
            [{"file_name": "dog/old/x.png", "caption": "a"}] * 2,
            r"line 2: names dog/old/x\.png a second time",
        ),
        (
            [{"file": "x.png", "caption": "a"}],
            r"line 1: has no key 'file_name'; did you mean 'file'\? Give it",
        ),
        ([{"file_name": "x.png", "caption": None}], r"line 1: 'caption' holds null, not text"),
    ],
)
def test_lines_that_do_not_fit_are_named(run, pets, tmp_path, home, records, message):
    with pytest.raises(UserError, match=message):
        lines(pets / "metadata.jsonl", *records)
        run(pets)
    assert not home.stores.exists()


def test_an_image_outside_all_class_folders_is_named(run, pets, home):
    shutil.copy(pets / "dog/old/x.png", pets / "z.png")
    with pytest.raises(
        UserError,
        match=r"--label-from=folder: z\.png lies in no folder below --source; move it into",
    ):
        run(pets, label_from="folder")
    assert not list(home.stores.glob("*"))


def test_a_name_that_is_no_text_is_refused(run, pets):
    (pets / "dog" / b"\xff.png".decode(errors="surrogateescape")).write_bytes(b"")
    with pytest.raises(
        UserError, match=r"holds a name that is not UTF-8 \('dog/\\udcff\.png'\); rename it"
    ):
        run(pets, label_from="folder")


def test_origins_that_a_source_does_not_have(run, pets, tmp_path):
    table = parquet_file(
        tmp_path / "t.parquet", image=pa.array([encoded(smooth(20, 20))], pa.binary())
    )
    with pytest.raises(
        UserError, match=r"--caption-from=txt: .*t\.parquet holds \.parquet files, which have"
    ):
        run(table, caption_from="txt")
    for origin in ("column", "metadata"):
        with pytest.raises(
            UserError, match=rf"--caption-from={origin}: .* holds images, which have their captions"
        ):
            run(pets, caption_from=origin)
    with pytest.raises(UserError, match=r"t\.parquet holds \.parquet files; give --label-column"):
        run(table, label_from="folder")
    with pytest.raises(UserError, match=r"pets holds images; give --label-from"):
        run(pets, label_column="kind")
    assert len(run(table, caption_from="none")) == 1
    with pytest.raises(ValueError, match=r"--min-side=8 is of --sizes aspect; leave it out"):
        ImagesOptions(source=pets, sizes="square", min_side=8)
    with pytest.raises(
        ValueError,
        match=r"--resolution=30 is no multiple of --patch=4; set --resolution to 28 or 32",
    ):
        ImagesOptions(source=pets, sizes="square", resolution=30, patch=4)


def test_small_images_name_the_options_that_help(run, tmp_path):
    source = captioned_folder(tmp_path / "tiny", {"a.png": (smooth(32, 40), "small")})
    with pytest.raises(
        UserError, match=r"1 too small.*; name other files, or give a smaller --resolution\.$"
    ):
        run(source, sizes="aspect", resolution=256, patch=16)
    with pytest.raises(
        UserError,
        match=r"--resolution=32 leaves no size: .*, lower --patch or --step, or give --sizes square",
    ):
        run(source, sizes="aspect", resolution=32, patch=16)
    assert len(run(source, sizes="aspect", resolution=32, patch=4)) == 1
    assert len(run(source, resolution=32, patch=16)) == 1
