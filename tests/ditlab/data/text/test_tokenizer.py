"""Tokenisers: bytes, byte-level BPE learned here, and Hugging Face's files."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors

from ditlab.data.text.tokenizer import (
    END_TEXT,
    ByteTokenizer,
    HuggingFaceTokenizer,
    learn_bpe,
    load_tokenizer,
    open_tokenizer,
)
from ditlab.errors import UserError

TEXTS = ["the cat sat on the mat\n", "the dog sat on the log\n", "Ünïcödé — ok\n"] * 5
BPE = learn_bpe(TEXTS, 280)
BYTES = ByteTokenizer()
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])


def word_level(*words):
    tokenizer = Library(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def is_refused(content, *parts):
    with pytest.raises(UserError) as caught:
        load_tokenizer(content, "its file")
    for part in ("its file", *parts):
        assert part in str(caught.value)


@BOTH
@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token < tokenizer.vocabulary for token in ids)
    assert tokenizer.end not in ids, "an end token is nobody's text"


def test_bytes_are_those_of_utf8_in_one_byte_each():
    assert BYTES.encode("aé\n") == [97, 0xC3, 0xA9, 10]
    assert (BYTES.vocabulary, BYTES.end, BYTES.dtype) == (256, 255, "uint8")
    assert BYTES.ids("aé").dtype == np.uint8


@BOTH
def test_end_tokens_and_cut_characters_can_be_read(tokenizer):
    ids = [*tokenizer.encode("one"), tokenizer.end, *tokenizer.encode("two"), tokenizer.end]
    assert tokenizer.decode(ids) == f"one{END_TEXT}two{END_TEXT}"
    assert tokenizer.decode(tokenizer.encode("一")[:-1]) == "\ufffd"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("token", [-1, 280, 100_000])
def test_a_token_beyond_the_vocabulary_is_named(token):
    with pytest.raises(
        UserError, match=f"token {token} is beyond the tokeniser's vocabulary of 280; use the"
    ):
        BPE.decode([5, token])


@BOTH
def test_a_saved_tokenizer_is_the_same_one(tokenizer, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer.content)
    for path in (file, tmp_path):
        again = open_tokenizer(path)
        assert type(again) is type(tokenizer) and again.fingerprint == tokenizer.fingerprint
        assert (again.vocabulary, again.end) == (tokenizer.vocabulary, tokenizer.end)
        assert again.encode("the cat") == tokenizer.encode("the cat")


def test_a_bpe_has_the_bytes_the_end_token_and_what_it_learned():
    assert (BPE.vocabulary, BPE.end, BPE.dtype) == (280, 0, "uint16")
    assert len(BPE.encode(" the cat sat on the mat\n")) < 12
    assert learn_bpe(["ab"], 257).encode("ab") == learn_bpe(["xyz"], 257).encode("ab"), (
        "bytes alone"
    )
    assert learn_bpe(["ab"], 5000).vocabulary == 258, "there is one pair to learn"


def test_the_same_text_gives_the_same_bpe_in_another_process():
    code = (
        "import sys, json; from ditlab.data.text.tokenizer import learn_bpe;"
        "print(learn_bpe(json.load(sys.stdin), 280).fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(TEXTS), capture_output=True, text=True
    )
    assert done.stdout.strip() == BPE.fingerprint, done.stderr


def test_the_name_of_the_end_token_is_text_like_any_other():
    ids = BPE.encode(f"one{END_TEXT}two")
    assert BPE.end not in ids and BPE.decode(ids) == f"one{END_TEXT}two"


def test_of_any_file_text_alone_is_tokenised():
    """Templates, padding and truncation are of a model's inputs."""
    library = word_level("[UNK]", "one", "two", "[CLS]", "[PAD]")
    library.add_special_tokens(["</s>"])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A </s>", special_tokens=[("[CLS]", 3), ("</s>", 5)]
    )
    library.enable_truncation(3)
    library.enable_padding(length=9, pad_id=4, pad_token="[PAD]")
    tokenizer = load_tokenizer(library.to_str().encode(), "its file")
    assert tokenizer.encode("one two two one two") == [1, 2, 2, 1, 2]
    assert (tokenizer.vocabulary, tokenizer.end) == (6, 5)


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "int32")]
)
def test_tokens_take_the_smallest_type_that_holds_them(vocabulary, dtype):
    words = word_level("</s>", *map(str, range(vocabulary - 1)))
    tokenizer = HuggingFaceTokenizer(words.to_str().encode(), "its file")
    assert (tokenizer.vocabulary, tokenizer.dtype) == (vocabulary, dtype)
    assert tokenizer.ids(f"{vocabulary - 2}").tolist() == [vocabulary - 1]
    assert tokenizer.ids("").dtype == dtype


def test_files_that_are_no_tokenizers_are_named(tmp_path):
    is_refused(b"{", "is not JSON")
    is_refused(b'{"version": "1.0"}', "is no tokeniser that the library tokenizers")
    is_refused(
        BYTES.content.replace(b'"version": 1', b'"version": 2'),
        "holds a tokeniser of another ditlab",
    )
    is_refused(
        word_level("one", "two").to_str().encode(),
        "has no token that ends a document (looked for <|endoftext|>",
        "add one",
    )
    with pytest.raises(
        UserError, match=r"nowhere\.json cannot be read \(No such file.*name a tokenizer\.json"
    ):
        open_tokenizer(tmp_path / "nowhere.json")


def test_without_the_library_bytes_work_and_others_name_the_command(monkeypatch):
    content = BPE.content
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load_tokenizer(BYTES.content, "its file").encode("a") == [97]
    with pytest.raises(UserError, match=r"pip install 'ditlab\[text\]'"):
        load_tokenizer(content, "its file")


@pytest.fixture
def fetch(tmp_path):
    """Fetches by name in a process that has no network and a cache of its own."""

    def run(name):
        code = (
            "import sys; from ditlab.data.text.tokenizer import fetch_tokenizer\n"
            "from ditlab.errors import UserError\n"
            "try: print(fetch_tokenizer(sys.argv[1]).encode('one two'))\n"
            "except UserError as error: print(error)"
        )
        variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
        command = [sys.executable, "-c", code, name]
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True
        ).stdout.strip()

    return run


def test_a_name_is_looked_up_in_the_hubs_cache(fetch, tmp_path):
    repository = tmp_path / "hub" / "hub" / "models--acme--words"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text(word_level("</s>", "one", "two").to_str())
    assert fetch("acme/words") == "[1, 2]"


def test_a_name_that_cannot_be_fetched_names_the_remedy(fetch):
    said = fetch("acme/unheard-of")
    assert said.startswith(
        "--tokenizer=acme/unheard-of is no file or folder here, and the Hugging Face hub does not"
    )
    assert said.endswith(
        "fetch its tokenizer.json on a machine that reaches the hub and name that file."
    )
    assert len(said.splitlines()) == 1
