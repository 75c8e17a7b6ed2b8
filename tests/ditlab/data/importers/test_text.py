"""Importer of text: .txt, JSON lines and Parquet as rows of tokens."""

import json
import tracemalloc
from pathlib import Path

import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.manifest import TextFacts
from ditlab.data.text import text_import
from ditlab.data.text.tokenizer import copy_tokenizer, open_tokenizer, store_tokenizer
from ditlab.spec.importing import TextOptions
from support.command import run_inside
from support.datasets.text_corpus import DOCUMENTS, EACH_KIND, stored, stream, write_corpus


@EACH_KIND
def test_rows_end_to_end_are_the_documents_with_end_tokens(importing, tmp_path, kind):
    store = importing(write_corpus(tmp_path / "corpus", kind))
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


def test_every_kind_of_file_and_number_of_processes_gives_the_same_store(importing, tmp_path):
    stores = []
    for kind, processes in (("txt", 1), ("jsonl", 2), ("parquet", 1)):
        source = write_corpus(tmp_path / kind, kind)
        options = {"tokenizer": "bpe", "vocabulary": 300, "processes": processes}
        stores.append(importing(source, name=kind, **options))
    assert len({store.fingerprint for store in stores}) == 1
    assert stores[0].columns["tokens"].dtype == "uint16"
    assert stores[0].manifest.text.bytes_per_token > 1.2


@EACH_KIND
def test_memory_does_not_grow_with_the_corpus(importing, tmp_path, kind, monkeypatch):
    # as are all blocks of a large store
    monkeypatch.setattr("ditlab.data.stores.block_index.BLOCK_BYTES", 2**18)
    monkeypatch.setattr("ditlab.data.text.documents.IN_MEMORY", 2**18)
    line = "Bounded memory, whatever the size of the corpus.\n" * 400
    highest = []
    for number, lines in enumerate((50, 150, 450)):  # 1, 3 and 9 MB
        texts = [line * lines] if kind == "txt" else [line] * lines
        source = write_corpus(tmp_path / f"{kind}-{lines}", kind, texts)
        del texts
        tracemalloc.start()
        importing(source, length=128, name=f"store-{number}")
        highest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert highest[2] - highest[1] < 2**20


def test_a_bpe_of_a_large_corpus_learns_from_a_part_of_it(importing, tmp_path, monkeypatch):
    monkeypatch.setattr(text_import, "LEARNING_BYTES", 100)
    texts = ["common words here", "rare: qqqqqqqqq", "common words here", "common words here"] * 2
    store = importing(
        write_corpus(tmp_path / "corpus", "jsonl", texts), tokenizer="bpe", vocabulary=300
    )

    assert "qq" not in json.loads(store_tokenizer(store).content)["model"]["vocab"]


def test_progress_is_reported_in_bytes_of_text(tmp_path):
    seen = {}
    source = write_corpus(tmp_path / "corpus", "jsonl")
    options = TextOptions(source=source, length=16, tokenizer="bpe", vocabulary=270)

    def progress(what, done, total, unit="bytes"):
        seen[what] = (done, total, unit)

    run_import("text", ImportRequest(tmp_path / "stores", tmp_path / "caches", options, progress))
    size = len("".join(DOCUMENTS).encode())
    assert seen == {
        "reading": (size, None, "bytes"),
        "learning the vocabulary": (size, size, "bytes"),
        "comparing documents": (1, 1, "blocks"),
        "tokenising": (1, 1, "blocks"),
    }


def test_the_tokenizer_travels_with_the_store(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    store = importing(source, tokenizer="bpe", vocabulary=300)
    tokenizer = open_tokenizer(store.path)
    assert store.manifest.attachments == {"tokenizer.json": tokenizer.fingerprint}
    assert copy_tokenizer(store, tmp_path / "run") == tmp_path / "run" / "tokenizer.json"
    assert open_tokenizer(tmp_path / "run").fingerprint == tokenizer.fingerprint
    again = importing(source, tokenizer=str(tmp_path / "run"), name="again")
    assert again.fingerprint == store.fingerprint
    assert again.manifest.text.tokenizer == str(tmp_path / "run")


def test_another_import_replaces_tokens_and_tokenizer_together(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    importing(source, name="same")
    replaced = importing(source, name="same", tokenizer="bpe", vocabulary=300)
    assert open_tokenizer(replaced.path).vocabulary == 300
    suffixes = sorted(file.suffix for file in replaced.path.iterdir())
    assert suffixes == [".arrow", ".bin", ".json", ".json"]


def test_a_length_beyond_the_corpus_is_refused(importing, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    importing.refused(
        tmp_path / "a.txt",
        "--length=16 is longer than the whole corpus",
        "gives 11 tokens",
        "set --length to 11 or less",
    )
    assert len(importing(tmp_path / "a.txt", length=11)) == 1


def test_missing_tokenizers_are_refused_before_anything_is_written(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    importing.refused(
        source, "nowhere/tokenizer.json cannot be read", tokenizer="./nowhere/tokenizer.json"
    )


def test_a_vocabulary_is_of_a_learned_bpe():
    words = "--vocabulary=300 is of a BPE that is learned, and --tokenizer=bytes has"
    with pytest.raises(ValueError, match=words):
        TextOptions(source=Path("corpus"), vocabulary=300)


def test_commands_import_and_inspect_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"body": f"[b]Document {n}[/b]. "}) + "\n" for n in range(99))
    )
    arguments = ("--source", "a.jsonl", "--column", "body", "--length", "64")
    where = {"home": tmp_path / "home", "cwd": tmp_path}
    done = run_inside("data", "import", "text", *arguments, "--json", **where)
    (store,) = done.json["stores"]
    assert (store["name"], store["rows"], store["text"]["documents"]) == ("text-a-bytes-64", 32, 99)
    assert "99 documents, 1,970 bytes, 2,069 tokens of tokeniser bytes" in done.err
    assert "(vocabulary 256; 0.9522 bytes a token); the last 21 fill no row" in done.err
    seen = run_inside("data", "inspect", store["name"], "--num", "2", "--json", **where)
    assert list(seen.json["texts"]) == ["0", "31"] and seen.json["picture"] is None
    assert "[b]Document 0[/b]. <|endoftext|>[b]Document" in seen.err
