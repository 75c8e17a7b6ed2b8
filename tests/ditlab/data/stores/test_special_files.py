"""Links, pipes and devices in the place of a store's files: one sentence at once, and nothing read from them."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ditlab.data.named_stores import open_named_store
from ditlab.data.splits import open_data
from ditlab.data.stores.bucketed_store import holds_store, open_store
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writing import write_store
from ditlab.data.text.tokenizer import TOKENIZER_NAME, ByteTokenizer
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData
from support.datasets.bucketed import bucketed
from support.special_files import KINDS, put, remove


@pytest.mark.parametrize(("kind", "problem"), KINDS)
def test_a_plain_store(make_store, home, tmp_path, kind, problem):
    store = make_store(rows=5)
    for name in ("store.json", store.manifest.shards[0].file):
        content = (store.path / name).read_bytes()
        put(kind, store.path / name)
        assert holds_store(store.path)
        for verify in (True, False):
            with pytest.raises(UserError, match=rf"{re.escape(name)}.*{problem}.*ditlab data import"):
                open_data(ArrowData(path=str(store.path)), home, verify)
        remove(store.path / name)
        (store.path / name).write_bytes(content)
    open_store(store.path)


@pytest.mark.parametrize(("kind", "problem"), KINDS)
def test_a_bucketed_store(tmp_path, kind, problem):
    store = bucketed(tmp_path / "s")
    folder = store.parts[1].path
    files = (store.path / "buckets.json", folder / "store.json", next(folder.glob("*.arrow")))
    for file in files:
        content = file.read_bytes()
        put(kind, file)
        with pytest.raises(UserError, match=rf"{re.escape(file.name)}.*{problem}.*ditlab data import"):
            open_store(store.path)
        remove(file)
        file.write_bytes(content)
    shutil.rmtree(folder)
    put(kind, folder)
    with pytest.raises(UserError, match=rf"{re.escape(folder.name)} (is a link; put the folder|holds no store)"):
        open_store(store.path)


@pytest.mark.parametrize(("kind", "problem"), KINDS)
def test_a_tokeniser(tmp_path, kind, problem):
    store = write_store(
        tmp_path / "s",
        {"tokens": Column(dtype="uint8", shape=(4,), num_classes=256)},
        [{"tokens": np.zeros((2, 4), np.uint8)}],
        name="s",
        description="",
        source=Source(kind="t"),
        attachments={TOKENIZER_NAME: ByteTokenizer().content},
    ).store
    put(kind, store.path / TOKENIZER_NAME)
    with pytest.raises(UserError, match=rf"tokenizer\.json cannot be read \(.*{problem}"):
        open_store(store.path)


def test_a_link_within_a_store_is_refused_and_a_linked_store_is_opened(make_store, tmp_path, home, monkeypatch):
    store = make_store(rows=5)
    shard = store.path / store.manifest.shards[0].file
    home.stores.mkdir(parents=True)
    (home.stores / "linked").symlink_to(store.path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.chdir(tmp_path)
    assert open_named_store("PATH", "linked", home).fingerprint == store.fingerprint
    with pytest.raises(UserError, match=r"circle leads to no folder \((Symlink loop|a link in a circle).*\); name"):
        open_named_store("data.path", "circle", home)
    shutil.move(shard, tmp_path / "elsewhere.arrow")
    shard.symlink_to(tmp_path / "elsewhere.arrow")
    with pytest.raises(UserError, match=rf"{shard.name} cannot be read \(a link, no plain file\); remove the store's"):
        open_named_store("PATH", "linked", home)


def test_a_store_is_written_over_special_files(make_store):
    store = make_store(rows=5)
    for name in ("store.json", store.manifest.shards[0].file):
        put("pipe", store.path / name)
    assert make_store(rows=5).fingerprint == store.fingerprint == open_store(store.path).fingerprint


def test_a_manifest_beyond_its_bound_is_not_read(make_store):
    store = make_store(rows=5)
    os.truncate(store.path / "store.json", 2**40)  # a file with holes
    with pytest.raises(UserError, match=r"store\.json: 1,099,511,627,776 bytes, more than 67,108,864\)"):
        open_store(store.path)


def test_names_that_no_file_system_takes(home):
    for name in ("x" * 5000, "~nobody-of-this-name/x", "/" + "y/" * 3000):
        with pytest.raises(UserError, match=r"holds no store|leads to no folder"):
            open_named_store("PATH", name, home)
    assert not holds_store(Path("x" * 5000))
