"""Sources of text: files and folders of each kind, and those that are refused."""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.text.text_import import open_text_source
from ditlab.errors import UserError
from support.datasets.text_corpus import DOCUMENTS, stored, stream, write_corpus
from support.special_files import KINDS, put


def test_sources_without_text_are_refused(importing, tmp_path):
    (tmp_path / "empty").mkdir()
    importing.refused(
        tmp_path / "empty", f"--source={tmp_path}/empty holds no .arrow, .csv, .jsonl, .mds, .parquet, .tsv, .txt file"
    )
    (tmp_path / "empty" / "a.txt").touch()
    importing.refused(tmp_path / "empty", "holds no text")
    (tmp_path / "a.md").write_text("a,b")
    importing.refused(tmp_path / "a.md", "a.md is no .arrow, .csv, .jsonl, .mds, .parquet, .tsv, .txt file")
    for kind in ("jsonl", "parquet"):
        importing.refused(write_corpus(tmp_path / kind, kind, []), "holds no text")


@pytest.mark.parametrize(
    ("content", "offset"),
    [(b"ab\xff", 2), (b"x" * (2**20 - 1) + "é".encode()[:1], 2**20 - 1), (b"x" * (2**20 - 1) + b"\xc3(", 2**20 - 1)],
)
def test_a_file_that_is_not_utf8_is_named_with_the_place(importing, tmp_path, content, offset):
    (tmp_path / "good.txt").write_text("x" * 100)
    (tmp_path / "odd.txt").write_bytes(content)
    byte = f"{content[offset]:#04x}"
    reason = f"is not UTF-8: byte {byte} at offset {offset} (from 0)"
    importing.refused(tmp_path, f"odd.txt {reason}", "iconv", unreadable="refuse")
    importing.refused(tmp_path / "odd.txt", f"odd.txt {reason}", "iconv")
    store = importing(tmp_path).store
    assert stored(store) == stream(["x" * 100])[: len(store) * 16] and store.manifest.text.documents == 1
    assert store.manifest.receipt.listed == (f"odd.txt: unreadable ({reason})",)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"text": "a"', ["line 2: is no JSON"]),
        (b'"text"', ["line 2: holds a str, not a JSON object"]),
        (b'{"txet": "a"}', ["line 2: has no key 'text'; did you mean 'txet'?", "--column"]),
        (b'{"text": null}', ["line 2: 'text' holds null, not text"]),
        (b'{"text": ["a"]}', ["line 2: 'text' holds a list, not text"]),
        (b'{"text": "a\\ud800"}', ["line 2: 'text' holds half of a surrogate pair at character 1"]),
        (b'{"text": "\xe9"}', ["is not UTF-8: byte 0xe9 at offset "]),
        (b"[" * 10**5, ["line 2: is no JSON"]),
    ],
)
def test_a_line_that_is_no_document_costs_itself_alone(importing, tmp_path, line, parts):
    whole = b'{"text": "0123456789abcde"}\n'
    (tmp_path / "a.jsonl").write_bytes(whole + line + b"\n" + whole)
    store = importing(tmp_path / "a.jsonl").store
    assert stored(store) == stream(["0123456789abcde"] * 2)
    reason = parts[0].removeprefix("line 2: ").partition(";")[0]
    (listed,) = store.manifest.receipt.listed
    assert listed.startswith(f"a.jsonl, line 2: unreadable ({reason}")
    shutil.rmtree(tmp_path / "stores")
    importing.refused(tmp_path / "a.jsonl", f"{tmp_path}/a.jsonl", *parts, unreadable="refuse")
    (tmp_path / "a.jsonl").write_bytes(line)
    importing.refused(tmp_path / "a.jsonl", *(part.replace("line 2", "line 1") for part in parts))


def test_of_many_bad_records_the_first_are_named_and_all_are_counted(importing, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "0123456789abcde"}\n' + b"no JSON\n" * 7)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    pq.write_table(pa.table({"text": ["0123456789abcde", None, "0123456789abcde"]}), tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and nothing more")
    store = importing(tmp_path, tokenizer="bpe", vocabulary=257).store
    assert store.manifest.text.documents == 3 and len(store) == 3
    receipt = store.manifest.receipt
    assert receipt.counts == {"damaged file": 1, "unreadable": 9}
    assert receipt.listed[0].startswith("a.jsonl, line 2: unreadable (is no JSON (") and len(receipt.listed) == 10


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"txet": ["a"]}, ["has no column 'text'; did you mean 'txet'?", "--column"]),
        ({"text": [1, 2]}, ["row 0: 'text' holds a int, not text"]),
        ({"text": [None, None]}, ["row 0: 'text' holds null, not text"]),
        ({"text": [{"a": 1}]}, ["row 0: 'text' holds a dict, not text"]),
    ],
)
def test_a_parquet_file_without_text_is_named(importing, tmp_path, table, parts):
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    importing.refused(tmp_path / "a.parquet", "a.parquet", *parts)


def test_a_parquet_file_that_is_damaged_or_not_utf8_is_named(importing, tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1 and nothing more")
    importing.refused(file, "is no Parquet file that can be read", "copy it again")
    binary = pa.array([b"fine", b"\xff\xfe"], pa.binary())
    odd = pa.StringArray.from_buffers(2, binary.buffers()[1], binary.buffers()[2])
    pq.write_table(pa.table({"text": odd}), file)
    importing.refused(file, "row 1: is not UTF-8", unreadable="refuse")
    store = importing(file, length=5).store
    assert stored(store) == stream(["fine"])
    assert store.manifest.receipt.listed[0].startswith("a.parquet, row 1: unreadable (is not")


def test_of_a_parquet_file_that_is_damaged_in_the_middle_the_rows_before_count(importing, tmp_path):
    file = tmp_path / "a.parquet"
    texts = [f"{number:015d}" for number in range(256)]
    pq.write_table(pa.table({"text": texts}), file, row_group_size=64, compression="zstd", use_dictionary=False)
    begin = pq.read_metadata(file).row_group(2).column(0).data_page_offset
    content = bytearray(file.read_bytes())
    for damaged in (begin, begin + 60):  # in a page's header, and behind it
        file.write_bytes(content[:damaged] + b"\xff" * 20 + content[damaged + 20 :])
        store = importing(file).store
        assert stored(store) == stream(texts[:128])
        (listed,) = store.manifest.receipt.listed
        assert listed.startswith("a.parquet, the rest from row 128 on: damaged file (no Parquet")


def test_large_strings_and_dictionaries_are_text(importing, tmp_path):
    for number, kind in enumerate((pa.large_string(), pa.dictionary(pa.int32(), pa.string()))):
        pq.write_table(pa.table({"text": pa.array(DOCUMENTS).cast(kind)}), tmp_path / f"{number}.parquet")
        store = importing(tmp_path / f"{number}.parquet").store
        assert stored(store) == stream(DOCUMENTS)[: len(store) * 16]


def test_folders_are_read_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.txt", "a/2.jsonl", "a.txt", "b/0/z.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [file.name for block in open_text_source(str(tmp_path))[0] for file in block.files]
    assert found == ["a/2.jsonl", "a.txt", "b/0/z.parquet", "b/1.txt"], "a folder at a time, as shells list them"


def test_blank_lines_and_byte_order_marks_are_no_text(importing, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "0123456789abcde"}\n\n  \n{"text": "0123456789abcd\\u00e9"}\n'
    )
    assert len(importing(tmp_path / "a.jsonl").store) == 2
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"0123456789abcde")
    assert stored(importing(tmp_path / "a.txt").store) == stream(["0123456789abcde"])


def test_another_column_and_documents_without_text(importing, tmp_path):
    for kind in ("jsonl", "parquet"):
        texts = ["", *DOCUMENTS[:2], "", *DOCUMENTS[2:]]
        store = importing(write_corpus(tmp_path / kind, kind, texts, column="body"), column="body").store
        assert stored(store) == stream(DOCUMENTS)[: len(store) * 16], "an empty document has no end token either"
        assert store.manifest.text.documents == 5


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet"])
def test_special_files_among_the_documents_are_left_out_and_named(importing, tmp_path, suffix):
    source = write_corpus(tmp_path / "corpus", "txt", DOCUMENTS)
    expected = importing(source).store
    for kind, _ in KINDS:
        put(kind, source / f"{kind}.{suffix}")
    (source / "again").symlink_to(source)
    store = importing(source).store
    assert store.manifest.text == expected.manifest.text
    assert store.manifest.receipt.levels[1].num_left_out == 5
    listed = "\n".join(store.manifest.receipt.listed)
    for kind, words in (("circle", "a link in a circle"), ("device", "a device"), ("pipe", "a named pipe")):
        assert re.search(rf"^{kind}\.{suffix}: [^:]*{words}", listed, re.MULTILINE), listed


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet"])
@pytest.mark.parametrize(("kind", "problem"), KINDS[:-1])
def test_a_special_file_as_the_source_is_named(importing, tmp_path, suffix, kind, problem):
    with pytest.raises(UserError, match=rf"x\.{suffix} .*({problem}|a device)"):
        importing(put(kind, tmp_path / f"x.{suffix}"))


def test_a_folder_of_special_files_alone_is_named(importing, tmp_path):
    put("pipe", tmp_path / "in" / "a.txt")
    importing.refused(tmp_path / "in", "a.txt", "a named pipe, no plain file")


def test_a_line_without_end_is_refused_before_it_fills_memory(importing, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.sources.lines.LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' + b'{"text": "' + b"x" * 5000)
    importing.refused(
        tmp_path / "a.jsonl", "a.jsonl: the line at byte 16 has more than 1,000 bytes", "longer ones into .txt files"
    )
