"""Streamed stores: the same rows as those of the store on disk, through a cache of any size; damage
is found.
"""

import numpy as np
import pytest
import torch

from ditlab.home import Home
from ditlab_addons.streaming.streamed_store import open_streamed_store
from support.damage import refused
from support.datasets.bucketed import bucketed


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def stream(path, home, cache_bytes=100 * 2**20):
    said = []
    store = open_streamed_store(path.as_uri(), home, cache_bytes, said.append)
    assert all("rows are fetched when they are needed, and kept in" in line for line in said)
    assert len(said) <= 1
    return store


def test_rows_are_those_of_the_store_on_disk(make_store, home):
    store = make_store(rows_per_block=7, rows_per_shard=21)
    streamed = stream(store.path, home)
    assert (streamed.fingerprint, streamed.name) == (store.fingerprint, store.name)
    places = np.random.default_rng(1).integers(0, 100, 300)
    for column in store.columns:
        expected = store.gather(column, places)
        assert torch.equal(streamed.gather(column, places), expected)
        out = torch.empty_like(expected)
        assert streamed.gather(column, places, out) is out and torch.equal(out, expected)
        assert torch.equal(streamed.tensor(column), store.tensor(column))
    streamed.verify()
    streamed.close()


def test_buckets_are_streamed_as_one_store(tmp_path, home):
    store = bucketed(tmp_path / "s")
    streamed = stream(store.path, home)
    assert streamed.fingerprint == store.fingerprint
    for part, expected in zip(streamed.parts, store.parts, strict=True):
        part.expect(np.arange(part.layout.num_blocks))
        assert torch.equal(part.tensor("image"), expected.tensor("image"))
    streamed.close()


def test_a_block_altered_at_the_place_is_found_before_its_rows_are_used(make_store, home):
    store = make_store(rows_per_block=7, rows_per_shard=21)
    shard = store.path / store.manifest.shards[2].file
    content = bytearray(shard.read_bytes())
    image = store.tensor("image")[45].numpy().tobytes()
    content[bytes(content).index(image)] ^= 1
    shard.write_bytes(content)
    streamed = stream(store.path, home)
    streamed.gather("image", np.arange(42))
    with refused(rf"{shard.name} was altered"):
        streamed.gather("label", np.array([3, 42]))
    streamed.close()
