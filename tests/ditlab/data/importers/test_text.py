"""Importer of text: .txt, JSON lines and Parquet as rows of tokens."""

import json
import re
import shutil
import tracemalloc
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.loading.field_checks import check_fields
from ditlab.data.stores.manifest import Column, Source, TextFacts
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.data.text import text_import
from ditlab.data.text.tokenizer import copy_tokenizer, open_tokenizer, store_tokenizer
from ditlab.errors import UserError
from ditlab.spec.importing import TextOptions
from ditlab_models.contract import BatchField, FieldOptions, ModelSpec
from support.command import run_inside
from support.datasets.text_corpus import DOCUMENTS, stored, stream, write_corpus
from support.datasets.writing import StoreWriter

SHAKESPEARE = Path(__file__).parents[5] / "shared" / "data" / "text" / "tinyshakespeare.txt"


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_rows_end_to_end_are_the_documents_with_end_tokens(importing, tmp_path, kind):
    store = importing(write_corpus(tmp_path / "corpus", kind)).store
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
    stores = [
        importing(write_corpus(tmp_path / kind, kind), name=kind, **options).store for kind in kinds
    ]
    assert len({store.fingerprint for store in stores}) == 1
    tokenizer = store_tokenizer(stores[0])
    expected = stream(DOCUMENTS, tokenizer)
    assert stored(stores[0]) == expected[: len(expected) // 16 * 16]
    assert stores[0].columns["tokens"].dtype == "uint16"
    text = stores[0].manifest.text
    assert text.bytes_per_token == len("".join(DOCUMENTS).encode()) / len(expected) > 1.2


def test_any_number_of_processes_gives_the_same_store(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    options = {"tokenizer": "bpe", "vocabulary": 280}
    one = importing(source, processes=1, **options)
    two = importing(source, processes=2, **options)
    assert one.store.fingerprint == two.store.fingerprint


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_corpus(importing, tmp_path, kind, monkeypatch):
    # as are all blocks of a large store
    monkeypatch.setattr("ditlab.data.stores.block_index.BLOCK_BYTES", 2**18)
    monkeypatch.setattr("ditlab.data.text.documents.IN_MEMORY", 2**18)
    line, highest = "Bounded memory, whatever the size of the corpus.\n" * 400, []
    for number, lines in enumerate((50, 150, 450)):  # 1, 3 and 9 MB
        texts = ["".join([line] * lines)] if kind == "txt" else [line] * lines
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
    ).store
    assert all(texts[0][:5] in text or "q" in text for text in texts)
    assert "qq" not in json.loads(store_tokenizer(store).content)["model"]["vocab"]


def test_progress_is_reported_in_bytes_of_text(tmp_path):
    seen = {}
    source = write_corpus(tmp_path / "corpus", "jsonl")
    options = TextOptions(source=source, length=16, tokenizer="bpe", vocabulary=270)

    def progress(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        seen[what] = (done, total, unit)

    run_import("text", ImportRequest(tmp_path / "stores", tmp_path / "caches", options, progress))
    size = len("".join(DOCUMENTS).encode())
    assert seen == {
        "reading": (size, None, "bytes"),
        "learning the vocabulary": (size, size, "bytes"),
        "tokenising": (1, 1, "blocks"),
    }


def test_the_tokenizer_travels_with_the_store(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    store = importing(source, tokenizer="bpe", vocabulary=300).store
    tokenizer = open_tokenizer(store.path)
    assert store.manifest.attachments == {"tokenizer.json": tokenizer.fingerprint}
    assert copy_tokenizer(store, tmp_path / "run") == tmp_path / "run" / "tokenizer.json"
    assert open_tokenizer(tmp_path / "run").fingerprint == tokenizer.fingerprint
    again = importing(source, tokenizer=str(tmp_path / "run"), name="again").store
    assert again.fingerprint == store.fingerprint and again.manifest.text.tokenizer == str(
        tmp_path / "run"
    )
    assert (
        importing(source, tokenizer=str(tmp_path / "run" / "tokenizer.json")).store.name
        == "text-corpus-run-16"
    )


def test_an_altered_or_missing_tokenizer_is_noticed(importing, tmp_path):
    store = importing(write_corpus(tmp_path / "corpus", "jsonl")).store
    file = store.path / "tokenizer.json"
    file.write_text(file.read_text().replace("255", "254"))
    with pytest.raises(
        UserError, match=r"tokenizer\.json was altered: its SHA-256.*import the data again"
    ):
        Store.open(store.path, verify=False)
    file.unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing.*import the data again"):
        Store.open(store.path)


def test_the_tokenizer_is_part_of_the_fingerprint(importing, tmp_path):
    """Equal numbers under another tokeniser are another text."""
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


def test_a_store_without_tokens_has_no_tokenizer(make_store, tmp_path):
    store = make_store()
    assert store_tokenizer(store) is None and copy_tokenizer(store, tmp_path / "run") is None
    assert store.manifest.text is None and store.manifest.attachments == {}


def test_another_import_replaces_tokens_and_tokenizer_together(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    importing(source, name="same")
    replaced = importing(source, name="same", tokenizer="bpe", vocabulary=300)
    assert open_tokenizer(replaced.store.path).vocabulary == 300
    assert sorted(file.suffix for file in replaced.store.path.iterdir()) == [
        ".arrow",
        ".bin",
        ".json",
        ".json",
    ]


def test_two_bytes_tokens_are_gathered_across_shards(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (50, 4), np.uint16)
    column = Column(dtype="uint16", shape=(4,), num_classes=2**16)
    with StoreWriter(
        tmp_path / "s", {"tokens": column}, name="s", source=Source(kind="t"), rows_per_shard=7
    ) as writer:
        writer.append({"tokens": values})
    store = Store.open(tmp_path / "s")
    rows = np.random.default_rng(1).permutation(50)
    assert np.array_equal(store.gather("tokens", rows).numpy(), values[rows])
    assert np.array_equal(store.gather("tokens", rows).long().numpy(), values[rows])


class LanguageLike(ModelSpec):
    """Model of sequences of tokens."""

    family: Literal["language_like"] = "language_like"
    length: int = 16
    vocabulary: int = 50257

    def batch_fields(self):
        options = FieldOptions(("model.length",), num_classes="model.vocabulary")
        return (
            BatchField(
                "tokens", (self.length,), "int64", num_classes=self.vocabulary, options=options
            ),
        )


def test_another_vocabulary_names_the_setting(importing, tmp_path):
    store = importing(write_corpus(tmp_path / "corpus", "jsonl")).store
    view = View(store, np.arange(len(store)), "data.path=corpus")
    for vocabulary in (50257, 100):
        model = LanguageLike(vocabulary=vocabulary)
        problem = (
            "data.path=corpus holds tokens of a vocabulary of 256, but the model's is "
            f"{vocabulary}; "
        )
        with pytest.raises(
            UserError, match=re.escape(f"{problem}set model.vocabulary to 256 or import")
        ):
            check_fields(view, model.batch_fields(), settable=True)
        with pytest.raises(
            UserError, match=re.escape(f"{problem}import the data with the model's own tokeniser.")
        ):
            check_fields(view, model.batch_fields())
    with pytest.raises(UserError, match=r"set model\.length to 16 or"):
        check_fields(view, LanguageLike(length=8, vocabulary=256).batch_fields(), settable=True)
    check_fields(view, LanguageLike(vocabulary=256).batch_fields(), settable=True)


def test_a_length_beyond_the_corpus_is_refused(importing, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    importing.refused(
        tmp_path / "a.txt",
        "--length=16 is longer than the whole corpus",
        "gives 11 tokens",
        "set --length to 11 or less",
    )
    assert len(importing(tmp_path / "a.txt", length=11).store) == 1


def test_missing_tokenizers_are_refused_before_anything_is_written(importing, tmp_path):
    source = write_corpus(tmp_path / "corpus", "jsonl")
    importing.refused(
        source, "nowhere/tokenizer.json cannot be read", tokenizer="./nowhere/tokenizer.json"
    )
    importing.refused(source, "corpus.jsonl is no tokeniser", tokenizer=str(source))
    importing.refused(source, f"{tmp_path}/tokenizer.json cannot be read", tokenizer=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"vocabulary": 300},
            "--vocabulary=300 is of a BPE that is learned, and --tokenizer=bytes has",
        ),
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


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no tiny Shakespeare here")
def test_tiny_shakespeare(importing, tmp_path):
    store = importing(SHAKESPEARE, length=256).store
    assert (store.manifest.text.documents, store.manifest.text.bytes) == (1, 1_115_394)
    assert len(store) == 1_115_395 // 256
    assert bytes(stored(store)) == SHAKESPEARE.read_bytes()[: len(store) * 256]
    shutil.rmtree(store.path)


def test_commands_import_and_inspect_text(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"body": f"[b]Document {n}[/b]. "}) + "\n" for n in range(99))
    )
    arguments = ("--source", "a.jsonl", "--column", "body", "--length", "64")
    done = run_inside(
        "data", "import", "text", *arguments, "--json", home=tmp_path / "home", cwd=tmp_path
    )
    (store,) = done.json["stores"]
    assert (store["name"], store["rows"], store["text"]["documents"]) == ("text-a-bytes-64", 32, 99)
    assert "99 documents, 1,970 bytes, 2,069 tokens of tokeniser bytes" in done.err
    assert "(vocabulary 256; 0.9522 bytes a token); the last 21 fill no row" in done.err
    seen = run_inside(
        "data", "inspect", store["name"], "--num", "2", "--json", home=tmp_path / "home"
    )
    assert seen.json["texts"]["0"].startswith("[b]Document 0[/b]. <|endoftext|>[b]Document 1[/b]")
    assert list(seen.json["texts"]) == ["0", "31"] and seen.json["picture"] is None
    assert "[b]Document 0[/b]. <|endoftext|>[b]Document" in seen.err and "by class" not in seen.err


def test_mistakes_end_with_2_and_the_knob(tmp_path):
    for arguments, message in (
        ((), "Missing option '--source'"),
        (("--source", "nowhere"), "--source=nowhere: there is no such file or folder; correct it."),
        (("--source", ".", "--vocabulary", "200"), "200 is not in the range x>=257"),
        (("--source", ".", "--vocabulary", "300"), "--vocabulary=300 is of a BPE that is learned"),
        (("--source", "."), "--source=. holds no .csv, .jsonl, .parquet, .tsv, .txt file"),
    ):
        said = run_inside(
            "data", "import", "text", *arguments, home=tmp_path / "home", cwd=tmp_path
        )
        assert said.code == 2 and message in said.err and "Traceback" not in said.err
        assert not (tmp_path / "home" / "stores").exists()
