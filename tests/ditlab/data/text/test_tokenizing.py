"""Tokenising in pieces gives the tokens of the whole."""

import numpy as np
import pytest

from ditlab.data.text import text_import
from ditlab.data.text.documents import pieces
from ditlab.data.text.text_import import encode
from ditlab.data.text.tokenizer import learn_bpe
from support.datasets.text_corpus import DOCUMENTS, prose, stream


def test_groups_of_pieces_give_the_tokens_of_the_documents(monkeypatch):
    monkeypatch.setattr(text_import, "PIECE_LENGTH", 500)
    tokenizer = learn_bpe(DOCUMENTS, 300)
    arrays = list(encode((piece for text in DOCUMENTS * 3 for piece in pieces([text])), tokenizer))
    assert len(arrays) > 5 and {array.dtype.name for array in arrays} == {"uint16"}
    assert np.concatenate(arrays).tolist() == stream(DOCUMENTS * 3, tokenizer)


@pytest.mark.parametrize("length", [40, 200])
@pytest.mark.parametrize("block", [1, 7, 1000, 10**6])
def test_cuts_of_a_document_depend_on_its_text_alone(monkeypatch, length, block):
    monkeypatch.setattr("ditlab.data.text.documents.PIECE_LENGTH", length)
    text = prose(600)
    whole = list(pieces([text]))
    parts = list(pieces(text[start : start + block] for start in range(0, len(text), block)))
    assert parts == whole and "".join(part.text for part in parts) == text
    assert max(len(part.text) for part in parts) <= length
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("text", ["x" * 1000, "\n" * 1000, " " * 1000, "—" * 401])
def test_text_without_a_place_to_cut_is_cut_anywhere(monkeypatch, text):
    monkeypatch.setattr("ditlab.data.text.documents.PIECE_LENGTH", 100)
    assert "".join(part.text for part in pieces([text])) == text
    assert list(pieces([])) == list(pieces(["", ""])) == []


def test_a_long_documents_pieces_give_the_tokens_of_the_whole(monkeypatch):
    text = prose(3000)
    tokenizer = learn_bpe([text], 350)
    whole = tokenizer.encode(text)
    monkeypatch.setattr("ditlab.data.text.documents.PIECE_LENGTH", 300)
    assert len(list(pieces([text]))) > 30
    assert np.concatenate(list(encode(pieces([text]), tokenizer))).tolist() == [
        *whole,
        tokenizer.end,
    ]
