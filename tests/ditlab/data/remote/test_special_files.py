"""Strange files behind a URI, in a copy on a node and in a mirror's answer: named, and read no further than a bound."""

import os

import pytest

from ditlab.data.named_stores import open_named_store
from ditlab.errors import UserError
from support.special_files import KINDS, put


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Folder of this node's copies."""
    monkeypatch.setenv("DITLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


def test_a_manifest_beyond_its_bound_is_not_fetched_whole(make_store, home, monkeypatch):
    monkeypatch.setattr("ditlab.storage.remote.MAX_SMALL_FILE", 2**20)
    store = make_store(rows=5)
    os.truncate(store.path / "store.json", 2**40)  # a file with holes
    with pytest.raises(UserError, match=r"cannot be read \(more than 1,048,576 bytes\)"):
        open_named_store("data.path", f"file://{store.path}", home)


@pytest.mark.parametrize(("kind", "problem"), KINDS[:-1])
def test_special_files_in_a_nodes_copy_are_replaced(make_store, home, cache, kind, problem):
    store = make_store(rows=5)
    uri = f"file://{store.path}"
    copy = open_named_store("data.path", uri, home).path
    for name in ("store.json", store.manifest.shards[0].file):
        put(kind, copy / name)
        assert open_named_store("data.path", uri, home, notify=lambda message: None).fingerprint == store.fingerprint
        assert (copy / name).is_file() and not (copy / name).is_symlink()
