"""Sources as people have them: what of each is used, what is left out and why, and that the numbers
add up.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from ditlab.data.stores.duplicates import REPEATS
from ditlab.errors import UserError
from support.damage import refused
from support.datasets.odd_sources import (
    Build,
    Content,
    array,
    below,
    check_rows,
    class_labels,
    empty_folder,
    folder,
    gz,
    lines,
    link,
    metadata,
    pairs,
    pic,
    placed,
    special,
    symbolic,
    table,
    tarred,
    zipped,
    zst,
)
from support.datasets.text_corpus import stored, stream

A, B, C, D = (pic(letter) for letter in "abcd")
FOLDER = {"label_from": "folder"}
SKIP, NONE, CLS = {"missing_caption": "skip"}, {"caption_from": "none"}, {"label_from": "cls"}
LABEL = {"label_column": "label"}
BYTES = [A, B]


@dataclass
class Case:
    """A source, what is asked of it, and what is expected."""

    source: Build | dict[str, Content]
    levels: str
    """Levels of the receipt as `found unit: number of a use, ...; number of a reason ending, ...`,
    by `|`.
    """
    rows: str = ""
    """Letters of the pictures in the store, or documents of text, by spaces."""
    options: dict[str, Any] = field(default_factory=dict)
    captions: list[str] | None = None
    labels: str | None = None
    """Names of the rows' classes."""
    counts: tuple[int, ...] | None = None
    """Rows by class."""
    warns: str = ""
    """Parts of the warnings, by `|`; those of shares are not named."""
    changed: dict[str, int] = field(default_factory=dict)


def summary(receipt):
    """The receipt as `Case.levels` has it."""
    levels = []
    for level in receipt.levels:
        used = ", ".join(f"{number} {what}" for what, number in level.used.items() if number)
        left = ", ".join(sorted(f"{number} {reason}" for reason, number in level.left_out.items()))
        levels.append(f"{level.found} {level.unit}: {used}" + (f"; {left}" if left else ""))
    return " | ".join(levels)


def check(case, receipt):
    """Compare a receipt with what is expected, and its numbers among themselves."""
    assert summary(receipt) == case.levels
    left = sum(level.num_left_out for level in receipt.levels)
    assert len(receipt.listed) == left
    shares = [each for each in receipt.warnings if "were dropped, most as" in each]
    assert len(shares) == sum(level.num_left_out > 0.1 * level.found for level in receipt.levels)
    others = [each for each in receipt.warnings if each not in shares]
    expected = [part for part in case.warns.split("|") if part]
    assert len(others) == len(expected) and all(map(str.__contains__, others, expected)), others
    changed = {what: number for what, number in receipt.changed.items() if what != REPEATS}
    assert changed == case.changed


FOLDERS = {
    "a class folder is a link out of the source": Case(
        folder({"set/cat/a.png": A, "other/b.png": B, "set/dog": link("../other")}),
        "2 files: 2 images",
        "a b",
        FOLDER,
        labels="cat dog",
    ),
    "links in a circle": Case(
        {"cat/a.png": A, "cat/up": link(".."), "cat/self": link("self"), "dog/set": link("..")},
        "2 files: 1 images; 1 not read (without ending)",
        "a",
        FOLDER,
        counts=(1, 0),
        warns="1 class has no sample: dog",
    ),
    "an image is a link, another leads nowhere": Case(
        folder({"set/a.png": link("../x.png"), "x.png": A, "set/b.png": link("../y.png")}),
        "2 files: 1 images; 1 unreadable",
        "a",
        NONE,
    ),
    "jfif and jpe are JPEG, tif and tiff are read": Case(
        {
            "dog/a.jfif": pic("a", "JPEG"),
            "dog/b.jpe": pic("b", "JPEG"),
            "cat/c.tif": pic("c", "TIFF"),
            "cat/d.TIFF": pic("d", "TIFF"),
        },
        "4 files: 4 images",
        "c d a b",
        FOLDER,
        labels="cat cat dog dog",
    ),
    "other endings are counted": Case(
        {"dog/a.png": A, "dog/x.gif": "", "dog/y.GIF": "", "dog/z.svg": "", "readme": ""},
        "5 files: 1 images; 1 not read (.svg), 1 not read (without ending), 2 not read (.gif)",
        "a",
        FOLDER,
    ),
    "endings in any case, names with dots, lines with CRLF": Case(
        {"A.PNG": A, "A.TXT": "one\r\ntwo\r\n", "b_0.5.png": B, "b_0.5.txt": "half"},
        "4 files: 2 images, 2 captions and classes",
        "a b",
        captions=["one\ntwo", "half"],
    ),
    "what systems leave": Case(
        {
            "c/a.png": A,
            "c/._a.png": "",
            "c/.DS_Store": "",
            "c/Thumbs.db": "",
            "__MACOSX/c/._a.png": "",
            ".ipynb_checkpoints/a.png": A,
            "c/desktop.ini": "",
            "@eaDir/a.png": A,
        },
        "8 files: 1 images; 7 hidden or of the system",
        "a",
        FOLDER,
        labels="c",
    ),
    "class folders with nothing that is read": Case(
        {"ant": empty_folder, "cat/a.gif": "", "dog/a.png": A, "fox/.x.png": B},
        "3 files: 1 images; 1 hidden or of the system, 1 not read (.gif)",
        "a",
        FOLDER,
        counts=(0, 0, 1, 0),
        warns="3 classes have no sample: ant, cat, fox",
    ),
    "numbers of classes": Case(
        {"9/a.png": A, "9/b.png": B, "10/c.png": C},
        "3 files: 3 images",
        "c a b",
        FOLDER,
        labels="10 9 9",
        counts=(2, 1),
        warns="Class '9' is number 0",
    ),
    "a class is missing": Case(
        {"a.png": A, "a.cls": "x", "b.png": B, "c.cls": "y"},
        "4 files: 1 images, 1 captions and classes; 1 missing class, 1 without an image",
        "a",
        CLS,
        labels="x",
        counts=(1,),
    ),
    "a byte order mark, and other encodings": Case(
        {
            "a.png": A,
            "a.txt": b"\xef\xbb\xbfgr\xc3\xbcn",
            "b.png": B,
            "b.txt": b"gr\xfcn",
            "c.png": C,
            "c.txt": "c".encode("utf-16"),
        },
        "6 files: 1 images, 3 captions and classes; 2 unreadable",
        "a",
        captions=["grün"],
    ),
    "empty and missing captions": Case(
        {"a.png": A, "a.txt": "x", "b.png": B, "b.txt": "\ufeff \n", "c.png": C},
        "5 files: 1 images, 2 captions and classes; 2 missing caption",
        "a",
        SKIP,
        captions=["x"],
    ),
    "special files": Case(
        {"a.png": A}
        | {f"{kind}.png": special(kind) for kind in ("socket", "pipe", "circle", "device")},
        "2 files: 1 images; 1 unreadable",
        "a",
        NONE,
    ),
    "metadata of each split": Case(
        {
            "train/a.png": A,
            "train/metadata.jsonl": metadata("a.png"),
            "test/b.png": B,
            "test/metadata.jsonl": metadata("b.png"),
        },
        "4 files: 2 images, 2 metadata",
        "b a",
        captions=["of b.png", "of a.png"],
    ),
    "metadata with backslashes": Case(
        {"sub/a.png": A, "metadata.csv": 'file_name,caption,label\nsub\\a.png,"x, y",cat\n'},
        "2 files: 1 images, 1 metadata",
        "a",
        LABEL,
        captions=["x, y"],
        labels="cat",
    ),
    "small, large, cut and empty pictures": Case(
        {
            "a.png": A,
            "b.png": pic("b", side=8),
            "c.png": pic("c", side=80),
            "d.png": D[:60],
            "e.png": "",
        },
        "5 files: 1 images; 1 too large, 1 too small, 2 unreadable",
        "a",
        NONE | {"max_pixels": 1000},
    ),
    "captions are cut": Case(
        {"a.png": A, "a.txt": "a long one"},
        "2 files: 1 images, 1 captions and classes",
        "a",
        {"caption_length": 6},
        captions=["a long"],
        changed={"captions cut": 1},
    ),
    "names with line ends and colours": Case(
        {"a.png": A, "x\ny.gif": "", "\x1b[31mred.png": ""},
        "3 files: 1 images; 1 not read (.gif), 1 unreadable",
        "a",
        NONE,
    ),
}
ARCHIVES = {
    "a zip alone in a folder": Case(
        lambda into: zipped(pairs("a"), name="set/z.zip")(into).parent,
        "2 files: 1 images, 1 captions and classes",
        "a",
    ),
    "a zip with a damaged member": Case(
        zipped(
            [("a.png", A), ("b.png", B)], lambda content: content.replace(B, B[:-20] + bytes(20), 1)
        ),
        "2 files: 1 images; 1 unreadable",
        "a",
        NONE,
    ),
    "a tar with cls": Case(
        tarred(
            ("a.png", A), ("a.cls", "2"), ("b.png", B), ("b.cls", "10"), ("b.txt", "not asked for")
        ),
        "1 files: 1 read | 5 members: 2 images, 2 captions and classes; 1 not read (.txt)",
        "a b",
        CLS,
        labels="2 10",
        counts=(1, 1),
        warns="Class '2' is number 0",
    ),
    "a tar with hidden members and links": Case(
        tarred(
            ("./a.png", A),
            ("./._a.png", B),
            ("__MACOSX/a.png", B),
            ("c.png", symbolic("elsewhere")),
            ("d.bin", ""),
        ),
        "1 files: 1 read | 5 members: 1 images; 1 not read (.bin), 1 unreadable, 2 hidden or "
        "of the system",
        "a",
        NONE,
    ),
    "a tar whose neighbours are parted": Case(
        tarred(("a.png", A), ("b.png", B), ("b.txt", "b"), ("a.txt", "a")),
        "1 files: 1 read | "
        "4 members: 1 images, 1 captions and classes; 1 missing caption, 1 without an image",
        "b",
        SKIP,
    ),
    "a tar among others": Case(
        lambda into: (
            tarred(*pairs("a"))(below({"README.md": "", ".x.tar": "", "y.tar.gz": ""})(into)).parent
        ),
        "4 files: 1 read; 1 hidden or of the system, 1 not read (.md), 1 not read (.tar.gz) | "
        "2 members: 1 images, 1 captions and classes",
        "a",
    ),
}
TABLES = {
    f"captions of {kind}, images of {binary}": Case(
        table({"image": array(BYTES, binary), "caption": array(["x", "y"], kind)}, name=name),
        "1 files: 1 read | 2 rows: 2 images",
        "a b",
        captions=["x", "y"],
    )
    for kind, binary, name in (
        ("string_view", "binary_view", "t.parquet"),
        ("large_string", "large_binary", "T.PARQUET"),
        ("dictionary", "binary", "t.parquet"),
    )
} | {
    "classes with names": Case(
        table({"image": BYTES * 2, "label": [1, 0, -1, 7]}, class_labels(["9", "1"])),
        "1 files: 1 read | 4 rows: 2 images; 2 missing class",
        "a b",
        LABEL | NONE,
        labels="1 9",
        counts=(1, 1),
    ),
    "classes of numbers": Case(
        table({"image": BYTES * 2, "label": [10, 9, -1, None]}),
        "1 files: 1 read | 4 rows: 3 images; 1 missing class",
        "a b a",
        LABEL | NONE,
        labels="10 9 -1",
        counts=(1, 1, 1),
        warns="Class '-1' is number 0",
    ),
    "bytes and path": Case(
        table(
            {
                "image": [{"bytes": A, "path": None}, {"bytes": None, "path": "b.png"}, None],
                "caption": list("xyz"),
            }
        ),
        "1 files: 1 read | 3 rows: 1 images; 2 unreadable",
        "a",
        captions=["x"],
    ),
    "several captions": Case(
        table({"image": BYTES, "caption": [["one\r\n", "two"], []]}),
        "1 files: 1 read | 2 rows: 1 images; 1 missing caption",
        "a",
        SKIP,
        captions=["one\ntwo"],
    ),
    "captions as bytes, one of another encoding": Case(
        table({"image": BYTES, "caption": array(["grün".encode(), b"gr\xfcn"], "binary")}),
        "1 files: 1 read | 2 rows: 1 images; 1 unreadable",
        "a",
        captions=["grün"],
    ),
    "a damaged table among others": Case(
        lambda into: (
            table({"image": BYTES, "caption": ["x", "y"]})(
                below({"u.parquet": "PAR1", "n.md": ""})(into)
            ).parent
        ),
        "3 files: 2 read; 1 not read (.md) | 3 rows: 2 images; 1 damaged file",
        "a b",
        warns="Damaged: u.parquet.",
    ),
}
TEXTS = {
    "endings and compression": Case(
        {
            "a.jsonl.gz": gz(lines({"text": "one"})),
            "b.TXT": "two",
            "c.md": "three",
            "d.csv": '\ufeffid,text\n1,"fo\nur"\n',
            "e.txt.zst": zst("five"),
            "f.tsv": "text\nsix\n",
            "g.CSV.GZ": gz("text\nseven\n"),
            "h.pdf": "",
        },
        "8 files: 6 read; 1 not read (.md), 1 not read (.pdf) | 6 documents: 6 documents",
        "one|two|fo\nur|five|six|seven",
    ),
    "special files among texts": Case(
        {"a.txt": "one"}
        | {
            f"{kind}.{end}": special(kind)
            for kind in ("pipe", "device", "dangling")
            for end in ("txt", "csv", "parquet")
        },
        "4 files: 4 read | 4 documents: 1 documents; 1 unreadable, 2 damaged file",
        "one",
        warns="Damaged: dangling.csv, dangling.parquet.",
    ),
    "damaged and empty documents": Case(
        {
            "a.jsonl": lines(
                {"text": "one"}, {"text": ""}, {"text": None}, {"text": "\ud800"}, {"txt": ""}
            )
            + "{\n\n",
            "b.txt": b"gr\xfcn",
            "c.txt": "",
            "d.txt": "two",
            "e.csv.gz": gz("text\nthree\n" * 9)[:-12],
        },
        "5 files: 5 read | 10 documents: 2 documents; 1 damaged file, 2 without text, 5 unreadable",
        "one|two",
        warns="Damaged: e.csv.gz",
    ),
    "a zip of texts": Case(
        zipped(
            [("b/a.txt", "one"), ("__MACOSX/b/._a.txt", ""), ("b/c.jsonl", lines({"text": "two"}))]
        ),
        "3 files: 2 read; 1 hidden or of the system | 2 documents: 2 documents",
        "one|two",
    ),
}
PICTURES = FOLDERS | ARCHIVES | TABLES


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(run, tmp_path, name):
    case = PICTURES[name]
    store = run(placed(case.source, tmp_path), **case.options)
    check(case, store.manifest.receipt)
    check_rows(store, case.rows, case.captions, case.labels)
    if case.counts is not None:
        assert store.columns["label"].statistics.class_counts == case.counts


@pytest.mark.parametrize("name", ["small, large, cut and empty pictures", "classes with names"])
def test_two_processes_give_the_same(run, tmp_path, name, monkeypatch):
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)
    case = PICTURES[name]
    source = placed(case.source, tmp_path)
    one, two = (
        run(source, processes=number, name=str(number), **case.options) for number in (1, 2)
    )
    assert one.fingerprint == two.fingerprint and one.manifest.receipt == two.manifest.receipt


@pytest.mark.parametrize("name", TEXTS)
def test_texts(importing, tmp_path, name):
    case = TEXTS[name]
    store = importing(placed(case.source, tmp_path), length=2)
    check(case, store.manifest.receipt)
    found = Counter(stored(store))
    expected = Counter(stream(case.rows.split("|")))
    assert found <= expected and (expected - found).total() < 2, "the last row may be incomplete"


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (
            zipped(pairs("a"), lambda content: content[:-30]),
            {},
            r"z\.zip is no zip that can be read .*; copy it again",
        ),
        (
            table({"image": BYTES, "caption": [1, 2], "words": ["x", "y"]}),
            {},
            r"'caption' holds int; give --caption-column .*\(known: image, words\)",
        ),
        (
            table({"image": BYTES, "label": [0.5, 1.0], "kind": [1, 2]}),
            LABEL | NONE,
            r"'label' holds float; give --label-column .*\(known: image, kind\)",
        ),
        (
            table({"image": BYTES, "text": ["x", "y"]}),
            {},
            r"has no column 'caption'; give --caption-column .*text",
        ),
        (
            {"a.png": A, "metadata.csv": "file_name,caption\na.png,gr\xfcn\n".encode("latin-1")},
            {},
            r"metadata\.csv: is no UTF-8 \(byte 0xfc\); convert it, for one with `iconv",
        ),
        (
            {"a.png": A, "metadata.jsonl": metadata("a.png", "./a.png")},
            {},
            r"metadata\.jsonl, line 2: names a\.png a second time; remove one of the lines",
        ),
        ({"a.png": A}, {}, r"^a\.png has no caption; write one into a \.txt file"),
        (
            table({"image": BYTES, "caption": ["x", None]}),
            {},
            r"t\.parquet, row 1 has no caption; write one into the column of",
        ),
        (
            {"a.png": A, "b.png": B, "metadata.jsonl": metadata("a.png")},
            {},
            r"^b\.png has no caption; add a line for it to the metadata file",
        ),
        (
            {"a.png": ""},
            NONE | {"unreadable": "refuse"},
            r"a\.png: no BMP, .*; correct it, or give --unreadable skip\.",
        ),
        (
            {"a.png": pic("a", side=8)},
            NONE,
            r"no image that can be used \(1 too small\), the first being a\.png: too small",
        ),
        (
            {"a.png": A, "metadata.jsonl": metadata("0.png", "1.png", "2.png")},
            {},
            r"names 0\.png and 2 more, which",
        ),
        (
            {"a.png": A, "metadata.jsonl": lines({"file_name": "a.png", "caption": None})},
            {},
            r"line 1: 'caption' holds null, not text",
        ),
        (
            table({"image": BYTES}),
            {"caption_from": "txt"},
            r"--caption-from=txt: .*t\.parquet holds \.parquet files, which have",
        ),
        (
            {"a.png": A},
            {"caption_from": "metadata"},
            r"--caption-from=metadata: .* holds images, which have their captions",
        ),
        (table({"image": BYTES}), FOLDER, r"t\.parquet holds \.parquet files; give --label-column"),
        ({"a.png": A}, LABEL, r"set holds images; give --label-from"),
        ({"a.gif": ""}, {}, r"holds no \.bmp, \.jfif, .*, \.tar or .*\(1 \.gif\)"),
        (
            {"b.parquet": "PAR1 no"},
            {},
            r"b\.parquet: damaged file \(is no .parquet file that can be read \(",
        ),
        (
            {"a.png": A, "b.parquet": ""},
            {},
            r"holds images and \.parquet files; name a folder of one kind",
        ),
        ({"a.png": A}, FOLDER, r"a\.png lies in no folder below --source"),
        (
            {"c/a.png": A},
            FOLDER | LABEL,
            r"--label-from=folder and --label-column=label: give one of them",
        ),
    ],
)
def test_mistakes_are_a_sentence(run, home, tmp_path, build, options, message):
    source = placed(build, tmp_path)
    with pytest.raises((UserError, ValueError), match=message) as caught:
        run(source, **options)
    assert "\n" not in str(caught.value) or "label" in message
    assert not home.stores.exists()


def test_a_folder_without_rights(run, tmp_path, monkeypatch):
    """The tests may run as root, whom rights do not stop: the system's answer is put in its
    place.
    """
    source = below({"cat/a.png": A, "dog/b.png": B})(tmp_path)
    scan = os.scandir

    def refusing(path):
        if str(path).rstrip("/").endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr("os.scandir", refusing)
    with refused(r"set/dog cannot be listed \(Permission denied\); make it readable, or name"):
        run(source, **FOLDER)
