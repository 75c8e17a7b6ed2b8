"""Documentation of Python as a corpus and as a store."""

import json
import subprocess
import sys

import pytest

from ditlab.data import builtin
from ditlab.data.builtin import python_docs
from ditlab.data.loading.held_out import hold_out_runs
from ditlab.data.splits import open_data
from ditlab.data.text.tokenizer import END_TEXT, store_tokenizer
from ditlab.spec.data import ArrowData, TextData
from support.damage import refused


@pytest.fixture(scope="module")
def corpus():
    return python_docs()


@pytest.fixture
def quick_corpus(monkeypatch, corpus):
    """Reads the standard library once for all tests."""
    monkeypatch.setattr(builtin, "python_docs", lambda: corpus)


def test_python_brings_about_two_megabytes_of_documentation(corpus):
    whole = "\0".join(["", *corpus])
    assert 1_200_000 < len(whole) < 4_000_000
    assert "\0json\nJSON (JavaScript Object Notation)" in whole
    assert "json.decoder.JSONDecoder.raw_decode\nDecode a JSON document from" in whole
    assert whole.count('\0The "with" statement\n***') == 1
    assert not any(text.startswith(("test.", "idlelib", "numpy")) for text in corpus)


def test_no_long_paragraph_is_there_twice(corpus):
    """Held-out text that also trains would make a model look better than it is."""
    paragraphs = [" ".join(part.split()) for text in corpus for part in text.split("\n\n")]
    long = [part for part in paragraphs if len(part) >= 160]  # some have a heading above, their own
    assert len(long) == len(set(long)) > 3000


@pytest.mark.slow
def test_another_process_reads_the_same(corpus):
    code = (
        "import json; from ditlab.data.builtin import python_docs;print(json.dumps(python_docs()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == corpus


def test_it_is_data_like_any_other(module_home, quick_corpus, corpus):
    splits = open_data(TextData(length=128), module_home)
    store = splits.train.store
    whole = END_TEXT.join([*corpus, ""])
    assert splits.name == "python-docs-bytes-128" and splits.note == ""
    assert len(store) == (len("".join(corpus).encode()) + len(corpus)) // 128
    assert len(splits.held_out) == round(len(store) / 10)
    read = store_tokenizer(store).decode(store.tensor("tokens").numpy().reshape(-1))
    assert whole.startswith(read.rstrip("\ufffd")) and len(whole) - len(read) < 128 * len(END_TEXT)
    assert "other versions differ" in store.manifest.source.note
    assert open_data(TextData(length=128), module_home).fingerprint == splits.fingerprint


@pytest.mark.slow
def test_a_bpe_of_it_has_the_requested_vocabulary(module_home, quick_corpus):
    store = open_data(TextData(length=64, tokenizer="bpe", vocabulary=400), module_home).train.store
    assert store.name == "python-docs-bpe-400-64"
    assert store.columns["tokens"].num_classes == store_tokenizer(store).vocabulary == 400
    assert 1.3 < store.manifest.text.bytes_per_token < 4


def test_a_text_by_path_is_held_out_in_runs_too(module_home, quick_corpus):
    store = open_data(TextData(length=128), module_home).held_out.store
    splits = open_data(ArrowData(path=str(store.path), hold_out=0.2), module_home)
    assert splits.held_out.rows.tolist() == hold_out_runs(len(store), 0.2)[1].tolist()
    assert splits.fingerprint == store.fingerprint


def test_a_length_beyond_the_text_names_the_specs_knob(module_home, quick_corpus):

    with refused(
        r"data\.length=100000000 is longer than the whole corpus: data\.corpus=python-docs"
    ):
        open_data(TextData(length=10**8), module_home)
    assert not (module_home.stores / "python-docs-bytes-100000000").exists()
