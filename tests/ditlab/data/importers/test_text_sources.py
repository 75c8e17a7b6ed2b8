"""Sources of text: files and folders of each kind, and those that are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.text.text_import import open_text_source
from support.datasets.text_corpus import stored, stream, write_corpus


def test_sources_without_text_are_refused(importing, tmp_path):
    (tmp_path / "empty").mkdir()
    importing.refused(
        tmp_path / "empty",
        f"--source={tmp_path}/empty holds no .csv, .jsonl, .parquet, .tsv, .txt file",
    )
    (tmp_path / "empty" / "a.txt").touch()
    importing.refused(tmp_path / "empty", "holds no text")
    for kind in ("jsonl", "parquet"):
        importing.refused(write_corpus(tmp_path / kind, kind, []), "holds no text")


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"ab\xff", 2),
        (b"x" * (2**20 - 1) + "é".encode()[:1], 2**20 - 1),
        (b"x" * (2**20 - 1) + b"\xc3(", 2**20 - 1),
    ],
)
def test_a_file_that_is_not_utf8_is_named_with_the_place(importing, tmp_path, content, offset):
    (tmp_path / "good.txt").write_text("x" * 100)
    (tmp_path / "odd.txt").write_bytes(content)
    byte = f"{content[offset]:#04x}"
    reason = f"is not UTF-8: byte {byte} at offset {offset} (from 0)"
    importing.refused(tmp_path, f"odd.txt: {reason}", "iconv", unreadable="refuse")
    importing.refused(tmp_path / "odd.txt", f"odd.txt: {reason}", "iconv")
    store = importing(tmp_path)
    assert (
        stored(store) == stream(["x" * 100])[: len(store) * 16]
        and store.manifest.text.documents == 1
    )
    assert store.manifest.receipt.listed == (f"odd.txt: unreadable ({reason})",)


def test_what_cannot_be_read_is_refused_where_there_is_no_other(importing, tmp_path):
    table = pa.table({"text": [1, 2], "Texts": ["one", "two"]})
    pq.write_table(table, tmp_path / "a.parquet")
    importing.refused(
        tmp_path / "a.parquet",
        "a.parquet, row 0: 'text' holds a int, not text",
        "give --column (did you mean 'Texts'?).",
    )
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    importing.refused(
        tmp_path / "a.parquet", "is no .parquet file that can be read", "copy it again"
    )


def test_folders_are_read_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.txt", "a/2.jsonl", "a.txt", "b/0/z.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [file.name for block in open_text_source(str(tmp_path))[0] for file in block.files]
    assert found == ["a/2.jsonl", "a.txt", "b/0/z.parquet", "b/1.txt"], (
        "a folder at a time, as shells list them"
    )
