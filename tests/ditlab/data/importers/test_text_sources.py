"""Sources of text: files and folders of each kind, and those that are refused."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ditlab.data.text.documents import TextFiles
from ditlab.errors import UserError
from support.datasets.text_corpus import DOCUMENTS, stored, stream, write_corpus
from support.special_files import KINDS, put


def test_sources_without_text_are_refused(importing, tmp_path):
    (tmp_path / "empty").mkdir()
    importing.refused(tmp_path / "empty", f"--source={tmp_path}/empty holds no .jsonl, .parquet, .txt file")
    (tmp_path / "empty" / "a.txt").touch()
    importing.refused(tmp_path / "empty", "holds no text")
    (tmp_path / "a.csv").write_text("a,b")
    importing.refused(tmp_path / "a.csv", "a.csv is no .jsonl, .parquet, .txt file")
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
    importing.refused(tmp_path, f"odd.txt is not UTF-8: byte {byte} at offset {offset} (from 0)", "iconv")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"text": "a"', ["line 2: is no JSON"]),
        (b'"text"', ["line 2: holds a str, not a JSON object"]),
        (b'{"txet": "a"}', ["line 2: has no key 'text'; did you mean 'txet'?", "--column"]),
        (b'{"text": null}', ["line 2: 'text' holds null, not text"]),
        (b'{"text": ["a"]}', ["line 2: 'text' holds a list, not text"]),
        (b'{"text": "a\\ud800"}', ["line 2: 'text' holds half of a surrogate pair at character 1"]),
        (b'{"text": "\xe9"}', ["is not UTF-8: byte 0xe9 at offset 26 (from 0)"]),
        (b"[" * 10**5, ["line 2: is no JSON"]),
    ],
)
def test_a_line_that_is_no_document_is_named(importing, tmp_path, line, parts):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}'.ljust(14) + b"\n" + line + b"\n")
    importing.refused(tmp_path / "a.jsonl", f"{tmp_path}/a.jsonl", *parts)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"txet": ["a"]}, ["has no column 'text'; did you mean 'txet'?", "--column"]),
        ({"text": [1, 2]}, ["row 0: 'text' holds a int, not text"]),
        ({"text": ["a", None]}, ["row 1: 'text' holds null, not text"]),
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
    importing.refused(file, "row 1: is not UTF-8")


def test_large_strings_and_dictionaries_are_text(importing, tmp_path):
    for number, kind in enumerate((pa.large_string(), pa.dictionary(pa.int32(), pa.string()))):
        pq.write_table(pa.table({"text": pa.array(DOCUMENTS).cast(kind)}), tmp_path / f"{number}.parquet")
        store = importing(tmp_path / f"{number}.parquet").store
        assert stored(store) == stream(DOCUMENTS)[: len(store) * 16]


def test_folders_are_read_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.txt", "a/2.jsonl", "a.txt", "b/0/z.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(file.relative_to(tmp_path)) for file in TextFiles(tmp_path).files]
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
    assert store.fingerprint == expected.fingerprint
    assert store.manifest.source.note == (
        f"{expected.manifest.source.note}; 5 left out: circle.{suffix}: a link in a circle, dangling.{suffix}: No such "
        f"file or directory, device.{suffix}: a device, no plain file, pipe.{suffix}: a named pipe, no plain file, "
        f"socket.{suffix}: no plain file"
    )


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "parquet"])
@pytest.mark.parametrize(("kind", "problem"), KINDS[:-1])
def test_a_special_file_as_the_source_is_named(importing, tmp_path, suffix, kind, problem):
    with pytest.raises(UserError, match=rf"x\.{suffix} .*({problem}|a device)"):
        importing(put(kind, tmp_path / f"x.{suffix}"))


def test_a_folder_of_special_files_alone_is_named(importing, tmp_path):
    put("pipe", tmp_path / "in" / "a.txt")
    importing.refused(
        tmp_path / "in", "holds no .jsonl, .parquet, .txt file (1 left out: a.txt: a named pipe, no plain"
    )


def test_a_line_without_end_is_refused_before_it_fills_memory(importing, tmp_path, monkeypatch):
    monkeypatch.setattr("ditlab.data.source_files.LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' + b'{"text": "' + b"x" * 5000)
    importing.refused(tmp_path / "a.jsonl", "a.jsonl, line 2: has more than 1,000 bytes", "longer ones into .txt files")


def test_a_dictionary_that_unpacks_to_far_more_is_refused(importing, tmp_path):
    """4 kB of Parquet would be 64 documents of 20 MB, all of them in memory at a time."""
    file = tmp_path / "a.parquet"
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**31 - 1, "store_schema": False}
    copies = pa.DictionaryArray.from_arrays(pa.array([0] * 64), pa.array(["a " * (10 * 2**20)]))
    pq.write_table(pa.table({"text": copies}), file, **options)
    importing.refused(file, "a.parquet: 'text' holds a dictionary of", "to 20,971,524 and is copied into every row")
    pq.write_table(pa.table({"text": DOCUMENTS}), file, **options)
    assert len(importing(file).store)
