"""Tokenising in pieces gives the tokens of the whole."""

import numpy as np
import pytest

from ditlab.data.text import text_import
from ditlab.data.text.documents import pieces
from ditlab.data.text.text_import import encode
from ditlab.data.text.tokenizer import learn_bpe
from support.datasets.text_corpus import DOCUMENTS, prose, stream


def test_groups_of_pieces_give_the_tokens_of_the_documents(monkeypatch):
    """Short documents are put together, and a long one is cut."""
    monkeypatch.setattr(text_import, "PIECE_LENGTH", 500)
    monkeypatch.setattr("ditlab.data.text.documents.PIECE_LENGTH", 300)
    texts = [*DOCUMENTS * 3, prose(3000)]
    tokenizer = learn_bpe(texts, 350)
    arrays = list(encode((piece for text in texts for piece in pieces([text])), tokenizer))
    assert len(arrays) > 30 and {array.dtype.name for array in arrays} == {"uint16"}
    assert np.concatenate(arrays).tolist() == stream(texts, tokenizer)


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
