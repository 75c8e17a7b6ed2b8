"""Importing text: .txt, JSON lines and Parquet into rows of tokens."""

import json
import re
import shutil
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from denoisers.contract import BatchField, ModelSpec
from ditlab.data.import_request import ImportRequest
from ditlab.data.importing import run_import
from ditlab.data.loading.field_checks import check_fields
from ditlab.data.stores.manifest import Column, Source, TextFacts
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.data.stores.writer import StoreWriter
from ditlab.data.stores.written import WrittenStore
from ditlab.data.text import documents, token_store, tokenizing
from ditlab.data.text.documents import TextFiles, pieces
from ditlab.data.text.huggingface_tokenizer import learn_bpe
from ditlab.data.text.store_tokenizer import copy_tokenizer, store_tokenizer
from ditlab.data.text.tokenizer import ByteTokenizer
from ditlab.data.text.tokenizer_files import open_tokenizer
from ditlab.data.text.tokenizing import encode
from ditlab.errors import UserError
from ditlab.spec.importing import TextOptions
from support.command import run_here, run_process

WORDS = ("the", "cat", "sat", "on", "a", "mat", "Ünïcödé", "—", "don't", "42", "x_y", "end.\nNext", "\n", "\n\n", "  ")
SHAKESPEARE = Path("/work/shared/data/text/tinyshakespeare.txt")


def prose(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


DOCUMENTS = [prose(words, seed) for seed, words in enumerate((50, 1, 400, 7, 120))]


@dataclass(frozen=True)
class Importing:
    """Imports into a folder of the test's own."""

    folder: Path

    def __call__(self, source: Path, length: int = 16, **options: object) -> WrittenStore:
        asked = TextOptions(source=source, length=length, **options)
        (imported,) = run_import("text", ImportRequest(self.folder / "stores", self.folder / "caches", asked))
        return imported

    def refused(self, source: Path, *parts: str, **options: object) -> None:
        """Says all parts in one message, and writes nothing."""
        with pytest.raises(UserError) as caught:
            self(source, **options)
        for part in parts:
            assert part in str(caught.value)
        assert not (self.folder / "stores").exists()


@pytest.fixture
def importing(tmp_path: Path) -> Importing:
    return Importing(tmp_path)


def write(path: Path, kind: str, texts: Sequence[str] = DOCUMENTS, column: str = "text") -> Path:
    """The documents as a folder of .txt files, or a file of another kind."""
    if kind == "txt":
        for number, text in enumerate(texts):
            file = path / f"part-{number // 2}" / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        return path
    file = path.with_suffix(f".{kind}")
    if kind == "jsonl":
        lines = [json.dumps({"id": 1, column: text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(texts)]
        file.write_bytes("\n".join(lines).encode())
    else:
        table = pa.table({"id": range(len(texts)), column: pa.array(texts)})
        pq.write_table(table, file, row_group_size=2)
    return file


def stream(texts: Sequence[str], tokenizer=None) -> list[int]:
    """What a store of documents holds, end to end."""
    tokenizer = tokenizer or ByteTokenizer()
    return [token for text in texts for token in (*tokenizer.encode(text), tokenizer.end)]


def stored(store: Store) -> list[int]:
    return store.tensor("tokens").numpy().reshape(-1).tolist()


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_rows_end_to_end_are_the_documents_with_end_tokens(importing, tmp_path, kind):
    store = importing(write(tmp_path / "corpus", kind)).store
    expected = stream(DOCUMENTS)
    assert stored(store) == expected[: len(expected) // 16 * 16]
    assert store.name == "text-corpus-bytes-16"
    column = store.columns["tokens"]
    assert (column.dtype, column.shape, column.num_classes) == ("uint8", (16,), 256)
    size = len("".join(DOCUMENTS).encode())
    assert store.manifest.text == TextFacts(
        tokenizer="bytes", documents=5, bytes=size, tokens=size + 5, dropped=(size + 5) % 16
    )
    assert store.manifest.text.bytes_per_token == size / (size + 5)


def test_every_kind_of_file_gives_the_same_store(importing, tmp_path):
    kinds = ("txt", "jsonl", "parquet")
    options = {"tokenizer": "bpe", "vocabulary": 300}
    stores = [importing(write(tmp_path / kind, kind), name=kind, **options).store for kind in kinds]
    assert len({store.fingerprint for store in stores}) == 1
    tokenizer = store_tokenizer(stores[0])
    expected = stream(DOCUMENTS, tokenizer)
    assert stored(stores[0]) == expected[: len(expected) // 16 * 16]
    assert stores[0].columns["tokens"].dtype == "uint16"
    text = stores[0].manifest.text
    assert text.bytes_per_token == len("".join(DOCUMENTS).encode()) / len(expected) > 1.2


def test_another_column_and_documents_without_text(importing, tmp_path):
    for kind in ("jsonl", "parquet"):
        texts = ["", *DOCUMENTS[:2], "", *DOCUMENTS[2:]]
        store = importing(write(tmp_path / kind, kind, texts, column="body"), column="body").store
        assert stored(store) == stream(DOCUMENTS)[: len(store) * 16], "an empty document has no end token either"
        assert store.manifest.text.documents == 5


def test_blank_lines_and_byte_order_marks_are_no_text(importing, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "0123456789abcde"}\n\n  \n{"text": "0123456789abcd\\u00e9"}\n'
    )
    assert len(importing(tmp_path / "a.jsonl").store) == 2
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"0123456789abcde")
    assert stored(importing(tmp_path / "a.txt").store) == stream(["0123456789abcde"])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_gives_the_same_tokens(monkeypatch, processes):
    monkeypatch.setattr(tokenizing, "PIECE_LENGTH", 500)
    tokenizer = learn_bpe(DOCUMENTS, 300)
    read = [piece for text in DOCUMENTS * 3 for piece in pieces([text])]
    arrays = list(encode(read, tokenizer, processes))
    assert len(arrays) > 5 and {array.dtype.name for array in arrays} == {"uint16"}
    assert np.concatenate(arrays).tolist() == stream(DOCUMENTS * 3, tokenizer)


def test_any_number_of_processes_gives_the_same_store(importing, tmp_path):
    source = write(tmp_path / "corpus", "jsonl")
    options = {"tokenizer": "bpe", "vocabulary": 280}
    one = importing(source, processes=1, **options)
    two = importing(source, processes=2, **options)
    assert (one.outcome, two.outcome) == ("written", "unchanged")


def test_a_process_that_is_killed_is_told(monkeypatch):
    class Deadly(ByteTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.content = b"no tokeniser"  # a process cannot start with it

    with pytest.raises(UserError, match=r"--processes=2.*lower --processes"):
        list(encode(pieces(["some text"]), Deadly(), processes=2))


@pytest.mark.parametrize("length", [40, 200])
@pytest.mark.parametrize("block", [1, 7, 1000, 10**6])
def test_where_a_document_is_cut_depends_on_its_text_alone(monkeypatch, length, block):
    monkeypatch.setattr(documents, "PIECE_LENGTH", length)
    text = prose(600)
    whole = list(pieces([text]))
    parts = list(pieces(text[start : start + block] for start in range(0, len(text), block)))
    assert parts == whole and "".join(part.text for part in parts) == text
    assert max(len(part.text) for part in parts) <= length
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("text", ["x" * 1000, "\n" * 1000, " " * 1000, "—" * 401])
def test_text_without_a_place_to_cut_is_cut_anywhere(monkeypatch, text):
    monkeypatch.setattr(documents, "PIECE_LENGTH", 100)
    assert "".join(part.text for part in pieces([text])) == text
    assert list(pieces([])) == list(pieces(["", ""])) == []


def test_a_long_documents_pieces_give_the_tokens_of_the_whole(monkeypatch):
    text = prose(3000)
    tokenizer = learn_bpe([text], 350)
    whole = tokenizer.encode(text)
    monkeypatch.setattr(documents, "PIECE_LENGTH", 300)
    assert len(list(pieces([text]))) > 30
    assert np.concatenate(list(encode(pieces([text]), tokenizer))).tolist() == [*whole, tokenizer.end]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_what_is_held_does_not_grow_with_the_corpus(importing, tmp_path, kind):
    line, highest = "Bounded memory, whatever the size of the corpus.\n" * 400, []
    for number, lines in enumerate((50, 150, 450)):  # 1, 3 and 9 MB
        texts = ["".join([line] * lines)] if kind == "txt" else [line] * lines
        source = write(tmp_path / f"{kind}-{lines}", kind, texts)
        del texts
        tracemalloc.start()
        importing(source, length=128, name=f"store-{number}")
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[2] - highest[1] < 2**20


def test_a_bpe_of_a_large_corpus_learns_from_a_part_of_it(importing, tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "LEARNING_BYTES", 100)
    texts = ["common words here", "rare: qqqqqqqqq", "common words here", "common words here"] * 2
    store = importing(write(tmp_path / "corpus", "jsonl", texts), tokenizer="bpe", vocabulary=300).store
    assert all(texts[0][:5] in text or "q" in text for text in texts)
    assert "qq" not in json.loads(store_tokenizer(store).content)["model"]["vocab"]


def test_progress_is_told_in_bytes_of_text(tmp_path):
    seen = {}
    source = write(tmp_path / "corpus", "jsonl")
    asked = TextOptions(source=source, length=16, tokenizer="bpe", vocabulary=270)

    def progress(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        seen[what] = (done, total, unit)

    run_import("text", ImportRequest(tmp_path / "stores", tmp_path / "caches", asked, progress))
    size = len("".join(DOCUMENTS).encode())
    assert seen == {
        "reading": (size, None, "bytes"),
        "learning the vocabulary": (size, size, "bytes"),
        "tokenising": (size, size, "bytes"),
    }


def test_the_tokenizer_travels_with_the_store(importing, tmp_path):
    source = write(tmp_path / "corpus", "jsonl")
    store = importing(source, tokenizer="bpe", vocabulary=300).store
    tokenizer = open_tokenizer(store.path)
    assert store.manifest.attachments == {"tokenizer.json": tokenizer.fingerprint}
    assert copy_tokenizer(store, tmp_path / "run") == tmp_path / "run" / "tokenizer.json"
    assert open_tokenizer(tmp_path / "run").fingerprint == tokenizer.fingerprint
    again = importing(source, tokenizer=str(tmp_path / "run"), name="again").store
    assert again.fingerprint == store.fingerprint and again.manifest.text.tokenizer == str(tmp_path / "run")
    assert importing(source, tokenizer=str(tmp_path / "run" / "tokenizer.json")).store.name == "text-corpus-run-16"


def test_an_altered_or_missing_tokenizer_is_noticed(importing, tmp_path):
    store = importing(write(tmp_path / "corpus", "jsonl")).store
    file = store.path / "tokenizer.json"
    file.write_text(file.read_text().replace("255", "254"))
    with pytest.raises(UserError, match=r"tokenizer\.json was altered: its SHA-256.*import the data again"):
        Store.open(store.path, verify=False)
    file.unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing.*import the data again"):
        Store.open(store.path)


def test_the_tokenizer_is_part_of_the_fingerprint(importing, tmp_path):
    """The same numbers under another tokeniser are another text."""
    prints = set()
    for content in (b"one", b"two", None):
        with StoreWriter(
            tmp_path / str(content),
            {"tokens": Column(dtype="uint8", shape=(2,))},
            name="x",
            source=Source(kind="t"),
            attachments={"tokenizer.json": content} if content else None,
        ) as writer:
            writer.append({"tokens": np.zeros((3, 2), np.uint8)})
        prints.add(Store.open(tmp_path / str(content)).fingerprint)
    assert len(prints) == 3


def test_a_store_of_other_things_has_no_tokenizer(make_store, tmp_path):
    store = make_store()
    assert store_tokenizer(store) is None and copy_tokenizer(store, tmp_path / "run") is None
    assert store.manifest.text is None and store.manifest.attachments == {}


def test_another_import_replaces_tokens_and_tokenizer_together(importing, tmp_path):
    source = write(tmp_path / "corpus", "jsonl")
    importing(source, name="same")
    replaced = importing(source, name="same", tokenizer="bpe", vocabulary=300)
    assert replaced.outcome == "replaced"
    assert open_tokenizer(replaced.store.path).vocabulary == 300
    assert sorted(file.suffix for file in replaced.store.path.iterdir()) == [".arrow", ".json", ".json"]


def test_two_bytes_tokens_are_gathered_across_shards(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (50, 4), np.uint16)
    column = Column(dtype="uint16", shape=(4,), num_classes=2**16)
    with StoreWriter(tmp_path / "s", {"tokens": column}, name="s", source=Source(kind="t"), rows_per_shard=7) as writer:
        writer.append({"tokens": values})
    store = Store.open(tmp_path / "s")
    rows = np.random.default_rng(1).permutation(50)
    assert np.array_equal(store.gather("tokens", rows).numpy(), values[rows])
    assert np.array_equal(store.gather("tokens", rows).long().numpy(), values[rows])


class LanguageLike(ModelSpec):
    """A model of sequences of tokens; `depth` plays no part in them."""

    family: Literal["language_like"] = "language_like"
    depth: int = 256
    length: int = 16
    vocabulary: int = 50257

    def batch_fields(self):
        return (BatchField("tokens", (self.length,), "int64", num_classes=self.vocabulary),)


def test_a_model_of_another_vocabulary_is_told_which_to_set(importing, tmp_path):
    store = importing(write(tmp_path / "corpus", "jsonl")).store
    view = View(store, np.arange(len(store)), "data.path=corpus")
    for vocabulary in (50257, 100):
        model = LanguageLike(vocabulary=vocabulary)
        said = f"data.path=corpus holds tokens of a vocabulary of 256, but the model's is {vocabulary}; "
        with pytest.raises(UserError, match=re.escape(f"{said}set model.vocabulary to 256 or import")):
            check_fields(view, model.batch_fields(), model)
        with pytest.raises(UserError, match=re.escape(f"{said}import the data with the model's own tokeniser.")):
            check_fields(view, model.batch_fields())
    with pytest.raises(UserError, match=r"set model\.length to 16 or"):
        check_fields(view, LanguageLike(length=8, vocabulary=256).batch_fields(), LanguageLike(length=8))
    check_fields(view, LanguageLike(vocabulary=256).batch_fields(), LanguageLike(vocabulary=256))


def test_text_that_is_none_is_named(importing, tmp_path):
    (tmp_path / "empty").mkdir()
    importing.refused(tmp_path / "empty", f"--source={tmp_path}/empty holds no .jsonl, .parquet, .txt file")
    (tmp_path / "empty" / "a.txt").touch()
    importing.refused(tmp_path / "empty", "holds no text")
    (tmp_path / "a.csv").write_text("a,b")
    importing.refused(tmp_path / "a.csv", "a.csv is no .jsonl, .parquet, .txt file")
    for kind in ("jsonl", "parquet"):
        importing.refused(write(tmp_path / kind, kind, []), "holds no text")


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


def test_a_length_beyond_the_corpus_is_refused(importing, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    importing.refused(
        tmp_path / "a.txt",
        "--length=16 is longer than the whole corpus",
        "gives 11 tokens",
        "set --length to 11 or less",
    )
    assert len(importing(tmp_path / "a.txt", length=11).store) == 1


def test_tokenizers_that_cannot_be_had_are_refused_before_anything_is_written(importing, tmp_path):
    source = write(tmp_path / "corpus", "jsonl")
    importing.refused(source, "nowhere/tokenizer.json cannot be read", tokenizer="./nowhere/tokenizer.json")
    importing.refused(source, "corpus.jsonl is no tokeniser", tokenizer=str(source))
    importing.refused(source, f"{tmp_path}/tokenizer.json cannot be read", tokenizer=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 300}, "--vocabulary=300 is of a BPE that is learned, and --tokenizer=bytes has"),
        ({"vocabulary": 256, "tokenizer": "bpe"}, "greater than or equal to 257"),
        ({"length": 1}, "greater than or equal to 2"),
        ({"processes": 0}, "greater than or equal to 1"),
        ({"name": "a/b"}, "is no plain folder name"),
        ({"column": ""}, "at least 1 character"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TextOptions(source=Path("corpus"), **options)


def test_folders_are_read_in_the_order_of_their_paths(tmp_path):
    for name in ("b/1.txt", "a/2.jsonl", "a.txt", "b/0/z.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(file.relative_to(tmp_path)) for file in TextFiles(tmp_path).files]
    assert found == ["a/2.jsonl", "a.txt", "b/0/z.parquet", "b/1.txt"], "a folder at a time, as shells list them"


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no tiny Shakespeare here")
def test_tiny_shakespeare(importing, tmp_path):
    store = importing(SHAKESPEARE, length=256).store
    assert (store.manifest.text.documents, store.manifest.text.bytes) == (1, 1_115_394)
    assert len(store) == 1_115_395 // 256
    assert bytes(stored(store)) == SHAKESPEARE.read_bytes()[: len(store) * 256]
    shutil.rmtree(store.path)


def test_the_commands_import_text_and_show_it(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": f"[b]Document {n}[/b]. "}) + "\n" for n in range(99)))
    arguments = ("--source", "a.jsonl", "--column", "body", "--length", "64")
    done = run_process("data", "import", "text", *arguments, "--json", home=tmp_path / "home", cwd=tmp_path)
    (store,) = done.json["stores"]
    assert (store["name"], store["rows"], store["text"]["documents"]) == ("text-a-bytes-64", 32, 99)
    assert "99 documents, 1,970 bytes, 2,069 tokens of tokeniser bytes" in done.err
    assert "(vocabulary 256; 0.9522 bytes a token); the last 21 fill no row" in done.err
    seen = run_process("data", "inspect", store["name"], "--num", "2", "--json", home=tmp_path / "home")
    assert seen.json["texts"]["0"].startswith("[b]Document 0[/b]. <|endoftext|>[b]Document 1[/b]")
    assert list(seen.json["texts"]) == ["0", "31"] and seen.json["picture"] is None
    assert "[b]Document 0[/b]. <|endoftext|>[b]Document" in seen.err and "by class" not in seen.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--source'"),
        (("--source", "nowhere"), "'nowhere' does not exist"),
        (("--source", ".", "--vocabulary", "200"), "200 is not in the range x>=257"),
        (("--source", ".", "--vocabulary", "300"), "--vocabulary=300 is of a BPE that is learned"),
        (("--source", "."), "--source=. holds no .jsonl, .parquet, .txt file"),
    ],
)
def test_mistakes_end_with_2_and_the_knob(capfd, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    said = run_here(capfd, monkeypatch, "data", "import", "text", *arguments)
    assert said.code == 2 and message in said.err and "Traceback" not in said.err
    assert not (tmp_path / "home" / "stores").exists()
