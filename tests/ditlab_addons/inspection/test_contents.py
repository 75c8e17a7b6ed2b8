"""Tables of stores in 80 columns: no number and no word is broken or cut, and what all rows share
stands above them.
"""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from ditlab.data.stores.manifest import Column, ImportedFile, Source, TextFacts
from ditlab.data.stores.receipt import DroppedRecord, ReceiptLevel, make_receipt
from ditlab_addons.inspection.contents import store_tables, text_table
from support.datasets.bucketed import write
from support.datasets.writing import written


def text_of(store, width=80):
    console = Console(file=io.StringIO(), width=width)
    for table in store_tables(store, str(store.path)):
        console.print(table)
    return console.file.getvalue()


def words_of(text):
    return set(re.split(r"\s+", text))


def plain(path, columns, rows=4, **about):
    generator = np.random.default_rng(0)
    batch = {}
    for name, column in columns.items():
        drawn = generator.integers(0, column.num_classes or 2, (rows, *column.shape))
        if not column.num_classes:
            drawn = drawn * 0.123456789
        batch[name] = drawn.astype(column.dtype)
    return written(path, columns, batch, **about)


def test_a_store_of_regions(tmp_path):
    base = {"dtype": "int64", "shape": (900,), "unit": "base pairs"}
    names = (*(f"MOTIF_{n}" for n in range(282)), "accessibility")
    genome = plain(
        tmp_path / "get-fetal_heart",
        {
            "regions": Column(
                dtype="float32", shape=(900, 283), value_range=(0, 1), unit="score", names=names
            ),
            "present": Column(dtype="bool", shape=(900,)),
            "chromosome": Column(
                dtype="int64", num_classes=2, names=("chr1", "chr10"), unit="class index"
            ),
            "start": Column(**base),
            "end": Column(**base),
            "largest_accessibility": Column(dtype="float64", unit="atpm"),
        },
    )
    text = text_of(genome)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert words_of(
        "largest_accessibility float32 float64 int64 bool score atpm base pairs class index"
    ) <= words_of(text)
    assert genome.fingerprint in words_of(text)
    for column in genome.columns.values():
        assert f"{column.statistics.mean:.5g}" in words_of(text)
    assert {"(900,", "283)", "chr10"} <= words_of(text)


def test_a_store_of_text_and_one_of_buckets(tmp_path):
    tokens = Column(dtype="uint16", shape=(1024,), num_classes=65536, unit="token")
    facts = TextFacts(tokenizer="bytes", documents=2, bytes=10**9, tokens=10**9 + 1, dropped=5)
    text = text_of(plain(tmp_path / "books", {"tokens": tokens}, text=facts))
    assert "…" not in text and {"uint16", "token", "1,000,000,000", "(1024,)"} <= words_of(text)
    level = ReceiptLevel(unit="files", used={"images": 66}, left_out={"not read (.tif)": 1234})
    receipt = make_receipt(
        [level], [DroppedRecord(place="a.tif", reason="not read (.tif)")], {"captions cut": 2}
    )
    text = text_of(write(tmp_path / "photos", receipt=receipt).store)
    found = "1,300 files found: 66 images; 1,234 dropped: 1,234 not read (.tif)"
    for words in (found, "2 captions cut", "(95%) were dropped"):
        assert words in " ".join(text.split()), text
    assert "…" not in text and {"16x4", "55.6%"} <= words_of(text)
    assert re.search(r"height x width +width / height +rows +share", text)
    assert "uint8" in words_of(text) and "float16" in words_of(text) and "1,234" in words_of(text)


def test_files_and_columns_have_a_row_each(tmp_path):
    names = {"a": "train-images-idx3-ubyte.gz", "b": "train-labels-idx1-ubyte.gz"}
    files = tuple(
        ImportedFile(
            name=name, md5=letter * 32, check="md5", url=f"https://mirror.example/data/mnist/{name}"
        )
        for letter, name in names.items()
    )
    columns = {
        name: Column(dtype="uint8", value_range=(0, 255), unit="pixel intensity") for name in "ab"
    }
    text = text_of(plain(tmp_path / "s", columns, source=Source(kind="mnist", files=files)))
    assert "b" * 32 in text and "mirror.example" in text
    assert re.search(r"column +shape +type +range +unit", text)


@pytest.mark.parametrize("classes", [10, 1000])
def test_rows_by_class(tmp_path, classes):
    column = Column(dtype="int64", num_classes=classes)
    text = text_of(plain(tmp_path / "s", {"label": column}, rows=2000))
    assert "…" not in text and re.search(r"class +rows", text)
    assert ("the first 30 of 1,000 classes" in text) is (classes == 1000)


def test_rows_of_text_are_shown_whole():
    console = Console(file=io.StringIO(), width=80)
    console.print(text_table({0: "It was a dark and stormy night. " * 4, 120_000: "[red]x"}))
    assert "120,000" in console.file.getvalue() and "[red]x" in console.file.getvalue()
