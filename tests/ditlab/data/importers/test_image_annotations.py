"""Captions and classes of imported images: from names of folders and files, and from lines of JSON."""

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
        chosen = {"resolution": 16, "patch": 4, "sizes": "square", "processes": 1, "name": "set"} | options
        request = ImportRequest(home.stores, home.caches, ImagesOptions(source=source, **chosen))
        (imported,) = run_import("images", request)
        return imported.store

    return run


@pytest.fixture
def pets(tmp_path) -> Path:
    """Class folders: two cats, a dog below a folder of its own, one dog that is no picture, a broken bird."""
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
    assert store.columns["label"].names == ("bird", "dog", "tabby_cat") and store.columns["label"].num_classes == 3
    assert store.tensor("label").tolist() == [1, 2, 2]
    assert store.columns["label"].statistics.class_counts == (0, 1, 2)
    assert store.columns["image"].shape == (3, 16, 16) and "caption" not in store.columns
    assert store.manifest.receipt.counts == {"unreadable": 2}
    assert store.manifest.description == "3 images of 3 classes in 1 size"


def test_tars_of_class_folders_give_the_same(run, pets, tmp_path):
    expected = run(pets, label_from="folder").fingerprint
    files = sorted(file for file in pets.rglob("*") if file.is_file())
    tar = tar_file(tmp_path / "pets.tar", {str(file.relative_to(pets)): file.read_bytes() for file in files})
    assert run(tar, label_from="folder").fingerprint == expected
    dotted = tar_file(tmp_path / "dot.tar", {f"./{file.relative_to(pets)}": file.read_bytes() for file in files})
    assert run(dotted, label_from="folder").fingerprint == expected


def test_names_of_folders_and_files_are_captions(run, pets):
    assert captions(run(pets, caption_from="folder")) == ["dog", "tabby cat", "tabby cat"]
    both = run(pets, caption_from="stem", label_from="folder")
    assert captions(both) == ["x", "1 a", "2 b"] and both.tensor("label").tolist() == [1, 2, 2]


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
    file = lines(tmp_path / "c.jsonl", *({"file_name": name, "text": text} for name, text in named.items()))
    options = {"caption_from": str(file), "caption_column": "text"}
    store = run(pets, missing_caption="skip", label_from="folder", **options)
    assert captions(store) == ["an old dog", "größer"] and store.tensor("label").tolist() == [1, 2]
    assert store.manifest.receipt.counts == {"missing caption": 2, "unreadable": 1}
    with pytest.raises(UserError, match=r"bird/empty\.png has no caption; add a line for it to .*c\.jsonl, or give"):
        run(pets, **options)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"file_name": "y.png", "caption": "a"}],
            r"c\.jsonl names y\.png, which --source=.*pets does not hold",
        ),
        ([{"file_name": f"{n}.png", "caption": "a"} for n in range(3)], r"names 0\.png and 2 more, which"),
        ([{"file_name": "dog/old/x.png", "caption": "a"}] * 2, r"line 2: names dog/old/x\.png a second time"),
        ([{"file": "x.png", "caption": "a"}], r"line 1: has no key 'file_name'; did you mean 'file'\? Give it"),
        ([{"file_name": "x.png", "caption": None}], r"line 1: 'caption' holds null, not text"),
    ],
)
def test_lines_that_do_not_fit_are_named(run, pets, tmp_path, home, records, message):
    with pytest.raises(UserError, match=message):
        run(pets, caption_from=str(lines(tmp_path / "c.jsonl", *records)))
    assert not home.stores.exists()


def test_lines_that_cannot_be_read_cost_themselves_alone(run, pets, tmp_path):
    """An image without a line may be that of a damaged one."""
    file = lines(
        tmp_path / "c.jsonl",
        {"file_name": "dog/old/x.png", "caption": "old"},
        {"file_name": "dog/text.png", "caption": "x"},
        {"file_name": "tabby_cat/2_b.png", "caption": None},
    )
    file.write_bytes(file.read_bytes() + '{"file_name": "tabby_cat/1_a.png", "caption": "größer"}\n'.encode("latin1"))
    options = {"caption_from": str(file)}
    with pytest.raises(UserError, match=r"^c\.jsonl, line 3: 'caption' holds null, not text; correct it, or give"):
        run(pets, **options, unreadable="refuse")
    file.write_bytes(file.read_bytes() + b"no JSON\n")
    store = run(pets, **options)
    assert captions(store) == ["old"]
    assert store.manifest.receipt.counts == {"damaged line": 3, "unreadable": 4}
    said = store.manifest.receipt.listed
    assert said[1].startswith("c.jsonl, line 4: damaged line (is not UTF-8: byte 0xf6 at offset ")
    assert "tabby_cat/1_a.png: unreadable (its caption may be in a damaged line)" in store.manifest.receipt.listed


def test_an_image_outside_all_class_folders_is_named(run, pets, home):
    shutil.copy(pets / "dog/old/x.png", pets / "z.png")
    with pytest.raises(UserError, match=r"--label-from=folder: z\.png lies in no folder below --source; move it into"):
        run(pets, label_from="folder")
    with pytest.raises(UserError, match=r"z\.png has no caption; put it into a folder below --source that its caption"):
        run(pets, caption_from="folder")
    assert not list(home.stores.glob("*"))


def test_names_that_are_no_text_are_shown(run, pets):
    (pets / "dog" / b"\xff.png".decode(errors="surrogateescape")).write_bytes(b"")
    (pets / b"gr\xf6n".decode(errors="surrogateescape")).mkdir()
    shutil.copy(pets / "dog/old/x.png", pets / b"gr\xf6n".decode(errors="surrogateescape") / "x.png")
    store = run(pets, label_from="folder")
    assert store.columns["label"].names == ("bird", "dog", "gr\\udcf6n", "tabby_cat")
    assert r"dog/\udcff.png: unreadable (cannot identify" not in store.manifest.receipt.listed
    assert any(note.startswith(r"dog/\udcff.png: unreadable") for note in store.manifest.receipt.listed)


def test_origins_that_a_source_does_not_have(run, pets, tmp_path):
    table = parquet_file(tmp_path / "t.parquet", image=pa.array([encoded(smooth(20, 20))], pa.binary()))
    with pytest.raises(UserError, match=r"--caption-from=stem: .*t\.parquet holds \.parquet files; give column"):
        run(table, caption_from="stem")
    with pytest.raises(
        UserError, match=r"--caption-from=column: .* holds no \.parquet files; give txt, json, folder, stem"
    ):
        run(pets, caption_from="column")
    with pytest.raises(UserError, match=r"--label-from=folder: .* holds \.parquet files; give --label-column"):
        run(table, label_from="folder")
    with pytest.raises(UserError, match=r"--encode-text=x needs captions; give --caption-from"):
        run(pets, label_from="folder", encode_text="x")
    assert len(run(table, caption_from="none")) == 1
    with pytest.raises(ValueError, match=r"is none of txt, json, folder, stem, metadata, column, none and no"):
        ImagesOptions(source=pets, caption_from="captions.yaml")
    with pytest.raises(ValueError, match=r"--min-side=8 is of --sizes aspect; leave it out"):
        ImagesOptions(source=pets, sizes="square", min_side=8)
    with pytest.raises(ValueError, match=r"--resolution=30 is no multiple of --patch=4; set --resolution to 28 or 32"):
        ImagesOptions(source=pets, sizes="square", resolution=30, patch=4)


def test_small_images_name_the_options_that_help(run, tmp_path):
    source = captioned_folder(tmp_path / "tiny", {"a.png": (smooth(32, 40), "small")})
    with pytest.raises(UserError, match=r"1 too small.*; name other files, or give a smaller --resolution\.$"):
        run(source, sizes="aspect", resolution=256, patch=16)
    with pytest.raises(
        UserError,
        match=r"--resolution=32 leaves no size: .*, lower --step \(a multiple of --patch=16\), or give --patch 4",
    ):
        run(source, sizes="aspect", resolution=32, patch=16)
    assert len(run(source, sizes="aspect", resolution=32, patch=4)) == 1
    assert len(run(source, resolution=32, patch=16)) == 1
