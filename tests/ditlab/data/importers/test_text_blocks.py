"""Text is imported by blocks: no token is lost between them, and nothing depends on processes,
kills or the place.
"""

import pytest

from ditlab.data.text.documents import block_pieces
from ditlab.data.text.text_import import open_text_source
from support.datasets.text_corpus import EACH_KIND, prose, stored, stream, write_corpus
from support.object_store.server import object_server

TEXTS = [prose(40 + 13 * number % 50, seed=number) for number in range(60)]
LENGTH = 64


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 2,000 bytes: a few documents each."""
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 2000)
    monkeypatch.setattr("ditlab.data.sources.lines.READ_BYTES", 256)


def write(folder, kind):
    return write_corpus(folder, kind, TEXTS)


@EACH_KIND
def test_rows_of_a_block_are_its_documents_and_rests_follow_in_order(
    importing, tmp_path, small_blocks, kind
):
    """Every token is in a row but for less than one row."""
    source = write(tmp_path / "corpus", kind)
    found, own, rests = [], [], []
    for block in open_text_source(str(source))[0]:
        pieces = block_pieces(block, "text", pytest.fail)
        texts = "".join(piece.text + "\0" * piece.last for piece in pieces).split("\0")
        found += texts[:-1]
        tokens = stream(texts[:-1])
        whole = len(tokens) // LENGTH * LENGTH
        own += tokens[:whole]
        rests += tokens[whole:]
    assert sorted(found) == sorted(TEXTS)
    store = importing(source, length=LENGTH)
    assert len(store.manifest.shards) > 4
    assert stored(store) == own + rests[: len(rests) // LENGTH * LENGTH]
    assert store.manifest.text.documents == 60
    assert store.manifest.text.dropped == len(rests) % LENGTH


def test_a_pattern_names_the_store_by_the_folder_that_it_begins_below(importing, tmp_path):
    source = write(tmp_path / "corpus", "txt")
    one = importing(f"{source}/part-0/*.txt", length=LENGTH)
    assert one.manifest.text.documents == 2 and one.name == "text-part-0-bytes-64"


def test_a_large_text_file_has_several_blocks_and_one_document(importing, tmp_path, small_blocks):
    text = (
        "\ufeff"
        + "\n".join(f"line {number} é" + " \n" * (number % 3) for number in range(900))
        + "é" * 3000
    )
    (tmp_path / "large.txt").write_text(text)
    blocks = open_text_source(str(tmp_path / "large.txt"))[0]
    found = [list(block_pieces(block, "text", pytest.fail)) for block in blocks]
    assert len(blocks) > 5 and "".join(piece.text for block in found for piece in block) == text[1:]
    assert [piece.last for block in found for piece in block].count(True) == 1 and found[-1][
        -1
    ].last
    store = importing(tmp_path / "large.txt", length=LENGTH)
    assert store.manifest.text.documents == 1
    assert store.manifest.text.tokens == len(text[1:].encode()) + 1


@pytest.mark.slow
@EACH_KIND
def test_from_an_object_store(importing, tmp_path, small_blocks, kind):
    (tmp_path / "bucket").mkdir()
    source = write(tmp_path / "bucket" / "corpus", kind)
    here = importing(source, length=LENGTH, name="here")
    with object_server(tmp_path) as server:
        there = importing(f"s3://bucket/{source.name}?{server.query}", length=LENGTH, name="there")
    assert there.fingerprint == here.fingerprint
