"""Pictures, captions and classes that can be meant in two ways: what is taken is right, or said."""

import io
import json
import tarfile
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ditlab.api.imports import import_data
from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.bucketed_store import open_store
from ditlab.data.stores.duplicates import REPEATS
from ditlab.spec.importing import ImagesOptions
from support.damage import refused
from support.datasets.odd_sources import (
    Build,
    Content,
    below,
    check_rows,
    class_labels,
    colour,
    empty_folder,
    folder,
    lines,
    pic,
    placed,
    symbolic,
    table,
    tarred,
    zipped,
)
from support.datasets.photographs import encoded

A, B, C, D = (pic(letter) for letter in "abcd")
NONE, SKIP = {"caption_from": "none"}, {"missing_caption": "skip"}
FOLDER, CLS = {"label_from": "folder"}, {"label_from": "cls"}
LABEL = {"label_column": "label", **NONE}
SHARED = {"images that share a caption or class file with another": 2}
FIRST = {"images of several frames cut to their first": 1}
DEEP = {"images of 16 bits cut to their high 8": 1}
DARK = DEEP | {"images of 16 bits without a value above 4,095, so nearly black": 1}
ONE_ESCAPED = {"names that are not UTF-8 written with escapes": 1}


def raw(name):
    """A name of a file that may be no text."""
    return name.decode(errors="surrogateescape")


def hard(name):
    return tarfile.LNKTYPE, name


def frames(kind):
    first, *others = (Image.new("RGB", (16, 16), colour(letter)) for letter in "abc")
    return encoded(first, kind, save_all=True, append_images=others)


def deep(highest):
    """A grey PNG of 16 bits."""
    return encoded(np.full((16, 16), highest, np.uint16))


def deep_colour(highest):
    """An RGB PNG of 16 bits, which Pillow reads and does not write."""
    png = encoded(np.full((16, 48), highest, np.uint16))
    header = (
        png[16:24].replace((48).to_bytes(4, "big"), (16).to_bytes(4, "big")) + b"\x10\x02\0\0\0"
    )
    chunk = b"IHDR" + header
    return png[:12] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + png[33:]


def tables(*named):
    """Two tables of numbered classes whose names differ in order."""

    def build(into):
        (into / "set").mkdir()
        for number, names in enumerate(named):
            pictures = [(A, B), (C, D)][number]
            made = table(
                {"image": list(pictures), "label": [0, 1]}, class_labels(names), f"{number}.parquet"
            )
            made(into / "set")
        return into / "set"

    return build


def unflagged(*names):
    """A zip whose names do not say their encoding."""

    def build(into):
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w") as archive:
            for number, name in enumerate(names):
                archive.writestr("PQ"[number] * len(name), [A, B][number])
        content = sink.getvalue()
        for number, name in enumerate(names):
            content = content.replace(b"PQ"[number : number + 1] * len(name), name)
        (into / "z.zip").write_bytes(content)
        return into / "z.zip"

    return build


@dataclass
class Case:
    source: Build | dict[str, Content]
    rows: str
    """Letters of the pictures; empty for those that are nearly black."""
    options: dict[str, Any] = field(default_factory=lambda: NONE)
    captions: str | None = None
    labels: str | None = None
    changed: dict[str, int] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    """Beginnings of the lines on what was dropped."""
    says: tuple[str, ...] = ()
    """Parts of the warnings beside those on shares."""
    found: int | None = None
    """Records of the lowest level: used and dropped ones."""


TARS = {
    "two captions of one picture": Case(
        tarred(("a.png", A), ("a.txt", "x"), ("a.TXT", "y")),
        "a",
        {},
        "y",
        listed=("t.tar: a.txt: replaced by a later one (by a.TXT)",),
        found=3,
    ),
    "one caption of two pictures": Case(
        tarred(("a.png", A), ("a.jpg", pic("b", "JPEG")), ("a.txt", "x")),
        "a b",
        {},
        "x x",
        changed=SHARED,
        found=3,
    ),
    "links to pictures and captions of another folder": Case(
        tarred(
            ("x/a.png", A),
            ("x/a.txt", "x"),
            ("y/b.png", symbolic("../x/./a.png")),
            ("y/b.txt", hard("x/a.txt")),
        ),
        "a a",
        {},
        "x x",
        found=4,
    ),
    "links that lead out, to nothing, and in a circle": Case(
        tarred(
            ("a.png", A),
            ("b.png", symbolic("/etc/passwd")),
            ("c.png", symbolic("../a.png")),
            ("d.png", hard("e.png")),
            ("e.png", symbolic("e.png")),
        ),
        "a",
        listed=(
            "t.tar: b.png: unreadable (a link to /etc/passwd, which is no file of the tar)",
            "t.tar: c.png: unreadable (a link to ../a.png, which",
            "t.tar: d.png: unreadable (a link to e.png, which",
            "t.tar: e.png: unreadable (16 links, each to the next one)",
        ),
        found=5,
    ),
    "a caption is a link to nothing": Case(
        tarred(("a.png", A), ("a.txt", symbolic("b.txt")), ("c.png", C), ("c.txt", "c")),
        "c",
        SKIP,
        "c",
        listed=("t.tar: a.txt: unreadable (a link", "t.tar: a.png: missing caption"),
        found=4,
    ),
    "a hard link is to the file before it": Case(
        tarred(("a.png", A), ("b.png", hard("a.png")), ("a.png", C)),
        "a a c",
        changed={"images of a tar with the name of one before": 1},
    ),
    "a picture twice in a sample": Case(
        tarred(("a.png", A), ("a.png", B), ("a.txt", "x")),
        "b",
        {},
        "x",
        listed=("t.tar: a.png: replaced by a later one",),
        found=3,
    ),
    "a damaged member whose name is not UTF-8": Case(
        tarred(("a.png", A), (raw(b"\xff.png"), "no")),
        "a",
        changed=ONE_ESCAPED,
        listed=(r"t.tar: \xff.png: unreadable",),
    ),
    "a class folder whose name is not UTF-8": Case(
        tarred(("dog/a.png", A), (raw(b"caf\xe9/b.png"), B)),
        "a b",
        FOLDER,
        labels=r"dog caf\xe9",
        changed=ONE_ESCAPED,
    ),
}
FOLDERS = {
    f"several frames of {kind}": Case({name: frames(kind)}, "a", changed=FIRST)
    for name, kind in (("a.webp", "WEBP"), ("a.png", "PNG"), ("a.tif", "TIFF"), ("a.jpg", "MPO"))
} | {
    "two captions of one picture": Case(
        {"a.png": A, "a.txt": "x", "a.TXT": "y"},
        "a",
        {},
        "x",
        listed=("a.TXT: replaced by a later one",),
        found=3,
    ),
    "one caption of two pictures": Case(
        {"a.png": A, "a.PNG": B, "a.txt": "x"}, "b a", {}, "x x", changed=SHARED
    ),
    "16 bits of colours": Case({"a.png": deep_colour(25 * 257)}, "a", changed=DEEP),
    "12 of 16 bits": Case(
        {"a.png": deep(4095)},
        "",
        changed=DARK,
        says=("if white is a lower value in them, scale it to 65,535 first",),
    ),
    "12 of 16 bits of colours": Case(
        {"a.png": deep_colour(4095)}, "", changed=DARK, says=("nearly black",)
    ),
    "32 bits": Case(
        {
            "a.png": A,
            "b.tif": encoded(np.full((16, 16), 70_000, np.int32), "TIFF"),
        },
        "a",
        listed=("b.tif: unreadable (values from 70,000 to 70,000, and white is 65,535 at most)",),
    ),
    "a damaged picture whose name is not UTF-8": Case(
        {"a.png": A, raw(b"\xff.png"): ""},
        "a",
        changed=ONE_ESCAPED,
        listed=(r"\xff.png: unreadable",),
    ),
    "class folders whose names are not UTF-8": Case(
        {raw(b"caf\xe9/b.png"): B, raw(b"caf\xe9/c.png"): C, "dog/a.png": A},
        "b c a",
        FOLDER,
        labels=r"caf\xe9 caf\xe9 dog",
        changed=ONE_ESCAPED,
    ),
    "an empty class folder whose name is not UTF-8": Case(
        {raw(b"caf\xe9"): empty_folder, "dog/a.png": A},
        "a",
        FOLDER,
        labels="dog",
        changed=ONE_ESCAPED,
        says=("1 class has no sample: caf",),
    ),
    "a class that is not UTF-8": Case(
        {"a.png": A, "a.cls": b"gr\xfcn", "b.png": B, "b.cls": "x".encode("utf-16")}
        | {"c.png": C, "c.cls": "\ufeffc\r\n"},
        "c",
        CLS,
        labels="c",
        listed=(
            "a.png: unreadable (its class is not UTF-8: byte 0xfc",
            "b.png: unreadable (its class is not UTF-8: byte 0xff",
        ),
    ),
    "classes that are alike": Case(
        {"Cat/a.png": A, "cat/b.png": B, "3/c.png": C, "03/d.png": D},
        "d c a b",
        FOLDER,
        labels="03 3 Cat cat",
        says=("are classes of their own: '03' and '3', 'Cat' and 'cat'; name them alike",),
    ),
    "a zip that holds a picture twice": Case(
        zipped([("a.png", A), ("a.png", B)]),
        "b",
        listed=("a.png: replaced by a later one",),
        found=2,
    ),
    "a zip of a Mac, of UTF-8 names that do not say so": Case(
        unflagged("größe/a.png".encode()), "a", FOLDER, labels="größe"
    ),
    "a zip of another code page": Case(
        unflagged("größe/a.png".encode("cp437"), b"x/b.png"),
        "a b",
        FOLDER,
        labels="größe x",
        says=(
            "does not say the encoding of 1 names, which are read as code page 437: größe/a.png",
        ),
    ),
}
TABLES = {
    "an empty class in CSV": Case(
        {"a.png": A, "b.png": B, "metadata.csv": "file_name,label\na.png,\nb.png,x\n"},
        "b",
        LABEL,
        labels="x",
        listed=("a.png: missing class (no class)",),
    ),
    "empty classes in Parquet": Case(
        table({"image": [A, B, C], "label": ["", " ", "x"]}),
        "c",
        LABEL,
        labels="x",
        listed=("t.parquet, row 0: missing class", "t.parquet, row 1: missing class"),
    ),
    "text in a column of numbers that have names": Case(
        table({"image": [A, B, C], "label": ["y", "0", "z"]}, class_labels(["x", "y"])),
        "a b",
        LABEL,
        labels="y x",
        listed=("t.parquet, row 2: missing class",),
    ),
    "tables that number classes otherwise": Case(
        tables(["x", "y"], ["y", "x"]), "a b c d", LABEL, labels="x y y x"
    ),
    "numbers of a metadata file that have names": Case(
        lambda into: (
            table(
                {"file_name": ["a.png", "b.png", "c.png"], "label": [1, 0, 7]},
                class_labels(["y", "x"]),
                "set/metadata.parquet",
            )(below({"a.png": A, "b.png": B, "c.png": C})(into).parent).parent
        ),
        "a b",
        LABEL,
        labels="x y",
        listed=("c.png: missing class",),
    ),
    "the column that is asked for": Case(
        {"a.png": A, "metadata.csv": "file_name,caption,text\na.png,x,y\n"},
        "a",
        {"caption_column": "text"},
        "y",
    ),
    "classes and captions of one table": Case(
        table({"image": [A, B], "text": ["x", "y"], "caption": ["v", "w"], "label": ["c", "d"]}),
        "a b",
        {"label_column": "label", "caption_from": "column"},
        "v w",
        labels="c d",
        says=("Captions are of column caption, not text; --caption-column chooses.",),
    ),
    "several columns of classes that nobody asks for": Case(
        table(
            {"image": [A], "fine": [0], "label": [1]},
            {
                "huggingface": json.dumps(
                    {"info": {"features": {"fine": {"names": ["x"], "_type": "ClassLabel"}}}}
                )
            },
        ),
        "a",
        says=(
            "Columns 'label', 'fine' hold classes, which were not imported; give --label-column",
        ),
    ),
    "a column of classes of a metadata file that nobody asks for": Case(
        {"a.png": A, "metadata.csv": "file_name,caption,label\na.png,x,y\n"},
        "a",
        {},
        "x",
        says=("Column 'label' holds classes, which were not imported",),
    ),
    "two metadata files that complete each other": Case(
        {
            "a.png": A,
            "b.png": B,
            "metadata.csv": "file_name,caption\na.png,x\n",
            "metadata.jsonl": lines({"file_name": "b.png", "caption": "y"}),
        },
        "a b",
        {},
        "x y",
    ),
}
CASES = {
    f"{kind}: {name}": case
    for kind, cases in (("tar", TARS), ("folder", FOLDERS), ("table", TABLES))
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_is_right_or_said(run, tmp_path, name):
    case = CASES[name]
    with warnings.catch_warnings(action="ignore"):  # of names that a zip holds twice
        source = placed(case.source, tmp_path)
    store = open_store(run(source, **case.options).path)
    receipt = store.manifest.receipt
    check_rows(store, case.rows, case.captions and case.captions.split(), case.labels)
    changed = {what: number for what, number in receipt.changed.items() if what != REPEATS}
    assert changed == case.changed
    assert len(receipt.listed) == len(case.listed), receipt.listed
    assert all(map(str.startswith, receipt.listed, case.listed)), receipt.listed
    said = [each for each in receipt.warnings if "were dropped, most as" not in each]
    assert len(said) == len(case.says) and all(map(str.__contains__, said, case.says)), said
    if case.found is not None:
        assert receipt.levels[-1].found == case.found


def test_a_store_of_a_source_whose_name_is_not_utf8_opens_by_its_name(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    source = folder({raw(b"caf\xe9/dog/a.png"): A}, raw(b"caf\xe9"))(tmp_path)
    options = ImagesOptions(
        source=source, resolution=16, patch=4, sizes="square", processes=1, **FOLDER
    )
    for outcome in ("written", "unchanged"):
        (written,) = import_data("images", options)
        assert (written.store.name, written.outcome) == ("images-caf_xe9-16", outcome)
    assert len(open_named_store("PLACE", "images-caf_xe9-16", home)) == 1


NUMBERED = below({"3/a.png": A, "7/b.png": B, "8/c.png": C})


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [("0\n3\n7\n8\n", [1, 2, 3]), ("\ufeff8\r\n7\r\n3\r\n\r\n", [2, 1, 0])],
)
def test_a_file_of_classes_fixes_their_numbers(run, tmp_path, listed, numbers):
    classes = tmp_path / "classes.txt"
    classes.write_bytes(listed.encode())
    store = run(NUMBERED(tmp_path), classes=str(classes), **FOLDER)
    assert store.tensor("label").tolist() == numbers
    assert store.columns["label"].names == tuple(listed.removeprefix("\ufeff").split())
    assert not any("is number" in each for each in store.manifest.receipt.warnings)
    assert store.manifest.source.note.endswith("; classes in the order of classes.txt")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b"3\n7\n", FOLDER, r"classes\.txt lacks 8, of the classes of --source=.*; add a line"),
        (b"3\n7\n8\n3\n", FOLDER, r"classes\.txt names '3' twice; remove one of the lines"),
        (b"3\n\n7\n8\n", FOLDER, r"classes\.txt holds a line without a name; write a class on"),
        (b"gr\xfcn\n", FOLDER, r"classes\.txt is not UTF-8: byte 0xfc.*; convert it"),
        (b"3\n7\n8\n", NONE, r"lists classes, and none are read; give --label-from or --label-col"),
        (None, FOLDER, r"classes\.txt cannot be read \(No such file or directory\); correct it"),
    ],
)
def test_a_file_of_classes_that_does_not_fit(run, home, tmp_path, content, options, words):
    classes = tmp_path / "classes.txt"
    if content is not None:
        classes.write_bytes(content)
    with refused(words):
        run(NUMBERED(tmp_path), classes=str(classes), **options)
    assert not home.stores.exists()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            table({"image": [A, B], "label": [0, 1]}, class_labels(["x", "x"])),
            r"t\.parquet: 'label' has two classes 'x'; give one of them another name",
        ),
        (
            tables(["x", "y"], ["x", "z"]),
            r"1\.parquet has other classes than the first table \(z\); name tables of the same",
        ),
        (
            {"a.png": A, "metadata.jsonl": '{"file_name": "a.png", "label": "\\ud800"}\n'},
            r"metadata\.jsonl, line 1: 'label' holds a half of a surrogate pair, no class; write",
        ),
    ],
)
def test_classes_that_mean_nothing_are_refused(run, home, tmp_path, build, words):
    source = placed(build, tmp_path)
    with refused(words):
        run(source, **LABEL)
    assert not (home.stores / "set" / "buckets.json").exists()
