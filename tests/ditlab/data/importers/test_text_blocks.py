"""Text is imported by blocks: no token is lost between them, and nothing depends on processes,
kills or the place.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ditlab.data.import_blocks import ProcessExecutor
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.store import Store
from ditlab.data.text.documents import block_pieces
from ditlab.data.text.text_import import open_text_source
from ditlab.errors import UserError
from ditlab.spec.importing import TextOptions
from support.datasets.text_corpus import prose, stored, stream, write_corpus
from support.object_store.server import object_server

TEXTS = [prose(40 + 13 * number % 50, seed=number) for number in range(60)]
LENGTH = 64


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 2,000 bytes: a few documents each."""
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 2000)
    monkeypatch.setattr("ditlab.data.sources.lines.READ_BYTES", 256)


def write(folder: Path, kind: str) -> Path:
    return write_corpus(folder, kind, TEXTS)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_every_token_is_in_a_row_but_for_less_than_one_row(importing, tmp_path, small_blocks, kind):
    source = write(tmp_path / "corpus", kind)
    blocks = open_text_source(str(source))[0]
    assert len(blocks) > 3
    done = importing(source, length=LENGTH)
    text = done.store.manifest.text
    expected = stream(TEXTS)
    assert text is not None and (text.documents, text.tokens) == (60, len(expected))
    assert len(done.store) == len(expected) // LENGTH and text.dropped == len(expected) % LENGTH
    counts = np.bincount(expected, minlength=256) - np.bincount(stored(done.store), minlength=256)
    assert counts.min() >= 0 and counts.sum() == text.dropped


def test_rows_of_a_block_are_its_documents_and_rests_follow_in_order(
    importing, tmp_path, small_blocks
):
    source = write(tmp_path / "corpus", "jsonl")
    own, rests = [], []
    for block in open_text_source(str(source))[0]:
        texts, text = [], ""
        for piece in block_pieces(block, "text", pytest.fail):
            text += piece.text
            if piece.last:
                texts.append(text)
                text = ""
        tokens = stream(texts)
        whole = len(tokens) // LENGTH * LENGTH
        own += tokens[:whole]
        rests += tokens[whole:]
    assert (
        stored(importing(source, length=LENGTH).store)
        == own + rests[: len(rests) // LENGTH * LENGTH]
    )


@pytest.mark.slow
def test_processes_and_kills_change_nothing(importing, tmp_path, small_blocks):
    source = write(tmp_path / "corpus", "parquet")
    options = {"length": LENGTH, "tokenizer": "bpe", "vocabulary": 300}
    one = importing(source, processes=1, **options)
    two = importing(source, processes=2, **options)
    fingerprint = one.store.fingerprint
    assert two.store.fingerprint == fingerprint
    shutil.rmtree(one.store.path)

    class Killed(Exception):
        pass

    class Killing(ProcessExecutor):
        """Executor that ends after some blocks, as a kill does."""

        def run(self, work, blocks):
            for number, receipt in enumerate(super().run(work, blocks)):
                if number == 2:
                    raise Killed
                done.append(receipt.block)
                yield receipt

    done: list[int] = []
    request = ImportRequest(
        tmp_path / "stores", tmp_path, TextOptions(source=source, **options), executor=Killing(1)
    )
    for _ in range(2):
        with pytest.raises(Killed):
            run_import("text", request)
    again = importing(source, **options)
    assert again.store.fingerprint == fingerprint
    assert len(done) == len(set(done)) == 4, "whole blocks are not done again"
    assert [file for file in again.store.path.iterdir() if file.is_dir()] == []


def test_by_uri_and_by_pattern(importing, tmp_path, small_blocks):
    source = write(tmp_path / "corpus", "txt")
    here = importing(source, length=LENGTH, name="here").store
    there = importing(source.as_uri(), length=LENGTH, name="there").store
    assert here.fingerprint == there.fingerprint
    one = importing(f"{source}/part-0/*.txt", length=LENGTH).store
    assert one.manifest.text.documents == 2 and one.name == "text-part-0-bytes-64"
    with pytest.raises(
        UserError, match=r"--source=.*\*\.text matches no file; correct the pattern"
    ):
        importing(f"{source}/*.text")


def test_a_missing_column_names_the_nearest(importing, tmp_path):
    importing.refused(
        write(tmp_path / "corpus", "parquet"),
        "has no column 'txt'; did you mean 'text'?",
        column="txt",
    )


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
    store = importing(tmp_path / "large.txt", length=LENGTH).store
    assert store.manifest.text.documents == 1
    assert store.manifest.text.tokens == len(text[1:].encode()) + 1


def test_left_out_documents_of_all_blocks_are_counted(importing, tmp_path, small_blocks):
    lines = [
        json.dumps({"text": text}) if number % 10 else "no JSON"
        for number, text in enumerate(TEXTS)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    store = importing(tmp_path / "a.jsonl", length=LENGTH).store
    assert store.manifest.text.documents == 54
    receipt = store.manifest.receipt
    assert receipt.counts == {"unreadable": 6} and receipt.listed[0].startswith(
        "a.jsonl, line 1: unreadable (is no JS"
    )
    with pytest.raises(UserError, match="line 1: is no JSON"):
        importing(tmp_path / "a.jsonl", name="refused", unreadable="refuse")
    assert not (tmp_path / "stores" / "refused").exists()


def test_a_store_in_blocks_is_one_like_others(importing, tmp_path, small_blocks):
    store = importing(write(tmp_path / "corpus", "parquet"), length=LENGTH).store
    assert len(store.manifest.shards) > 4
    assert Store.open(store.path, verify=True).fingerprint == store.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_from_an_object_store(importing, tmp_path, small_blocks, kind):
    (tmp_path / "bucket").mkdir()
    source = write(tmp_path / "bucket" / "corpus", kind)
    here = importing(source, length=LENGTH, name="here").store
    with object_server(tmp_path) as server:
        there = importing(
            f"s3://bucket/{source.name}?{server.query}", length=LENGTH, name="there"
        ).store
    assert there.fingerprint == here.fingerprint
