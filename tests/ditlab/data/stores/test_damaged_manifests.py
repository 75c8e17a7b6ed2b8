"""Manifests with flipped bits and changed keys: a message or the same store, never another one,
never a traceback.
"""

import io
import itertools
import json
import time
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

from ditlab.data.splits import open_data
from ditlab.data.stores.bucketed_store import open_store
from ditlab.data.stores.manifest import Column, Source, TextFacts, class_column
from ditlab.data.text.tokenizer import TOKENIZER_NAME, ByteTokenizer
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.data import ArrowData
from ditlab_addons.inspection.contents import store_facts, store_tables
from support.damage import bit_flips, mutations, refused
from support.datasets.bucketed import bucketed
from support.datasets.manifests import edit_manifest
from support.datasets.writing import written

KINDS = ("store.json", "buckets.json", "bucket/store.json")


def plain(path):
    """Write a store of tokens with a tokeniser, named classes and two shards."""
    columns = {
        "tokens": Column(dtype="uint8", shape=(6,), num_classes=256, unit="token"),
        "class": class_column("", 2, ("even", "odd")),
        "score": Column(
            dtype="float32", shape=(2,), value_range=(0, 1), names=("A", "B"), divisors=(0.5, 3)
        ),
    }
    batch = {
        "tokens": np.tile(np.frombuffer(b"a text", np.uint8), (8, 1)),
        "class": np.arange(8) % 2,
        "score": np.full((8, 2), 0.25, np.float32),
    }
    return written(
        path,
        columns,
        batch,
        source=Source(kind="text", note="read from books"),
        attachments={TOKENIZER_NAME: ByteTokenizer().content},
        text=TextFacts(tokenizer="bytes", documents=3, bytes=45, tokens=50, dropped=2),
        rows_per_shard=5,
        description="words",
    )


def made(kind, path):
    """Write a store; returns it with the manifest that is to be damaged."""
    if kind == "store.json":
        return plain(path), path / kind
    store = bucketed(path)
    return store, path / kind if kind == "buckets.json" else store.parts[1].path / "store.json"


def shown(store):
    """Return all that readers see of a store: its manifests, and its tables as text."""
    console = Console(file=io.StringIO(), width=80)
    for table in store_tables(store, "here"):
        console.print(table)
    store_facts(store, "here", None)
    return console.file.getvalue(), store.manifest, *(part.manifest for part in store.parts)


def outcome(path, home, expected):
    """Open a store as training and `data inspect` do; returns `refused`, `same` or `other`."""
    try:
        store = open_store(path)
        splits = open_data(ArrowData(path=str(path)), home)
    except UserError as error:
        assert str(error).endswith(".") and str(error).isprintable(), error
        return "refused"
    assert len(splits.train) + len(splits.held_out) == len(store)
    for column in store.columns:
        [part.gather(column, np.arange(len(part))) for part in store.parts]
    return "same" if shown(store) == expected else "other"


def attack(kind, tmp_path, flips, changes):
    store, file = made(kind, tmp_path / "store")
    home, content = Home(tmp_path / "home"), file.read_bytes()
    expected = shown(open_store(store.path))
    counts: Counter[str] = Counter()
    for damaged in itertools.chain(bit_flips(content, flips), mutations(content, changes)):
        file.write_bytes(damaged)
        began = time.process_time()
        found = outcome(store.path, home, expected)
        assert time.process_time() - began < 5
        counts[found] += 1
        assert found != "other", damaged
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("flips", "changes", "refused"),
    [
        (10, 20, 15),
        pytest.param(1000, 300, 800, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_damage_is_refused_or_changes_nothing(tmp_path, kind, flips, changes, refused):
    counts = attack(kind, tmp_path, flips, changes)
    assert counts["refused"] > refused and counts.total() == flips + changes


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("{", "is not a store's manifest"),
        ({"version": 6}, "is of format version 6, and version 7 is read here"),
        ({"fingerprint": "0" * 64}, "was altered: its content does not give its fingerprint"),
    ],
)
def test_manifests_that_are_not_ours_are_refused(tmp_path, kind, change, words):
    store, file = made(kind, tmp_path / "s")
    if isinstance(change, str):
        file.write_text(change)
    else:
        edit_manifest(file, **change)
    with refused(rf"{kind} {words}.*; import the data again"):
        open_store(store.path)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_manifest_without_its_checksum_is_refused(tmp_path, kind):
    store, file = made(kind, tmp_path / "s")
    keys = json.loads(file.read_text())
    file.write_text(json.dumps(keys))  # in another layout it is the same
    assert shown(open_store(store.path)) == shown(store)
    file.write_text(json.dumps(keys | {"name": "papers"}))
    with refused(rf"{kind} was altered: its content does not give its checksum; import"):
        open_store(store.path)
    del keys["checksum"]
    file.write_text(json.dumps(keys))
    with refused("does not give its checksum"):
        open_store(store.path)
