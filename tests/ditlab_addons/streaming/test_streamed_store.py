"""Streamed stores: the same rows as those of the store on disk, through a cache of any size; damage
is found.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ditlab.data.stores.store import Store
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab_addons.streaming.streamed_store import open_streamed_store
from support.datasets.bucketed import bucketed

MakeStore = Callable[..., Store]
MIB = 2**20


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def stream(path: Path, home: Home, cache_bytes: int = 100 * MIB) -> Store:
    said: list[str] = []
    store = open_streamed_store(path.as_uri(), home, cache_bytes, said.append)
    assert (
        all("rows are fetched when they are needed, and kept in" in line for line in said)
        and len(said) <= 1
    )
    return store


def test_rows_are_those_of_the_store_on_disk(make_store: MakeStore, home: Home) -> None:
    store = make_store(rows_per_block=7, rows_per_shard=21)
    streamed = stream(store.path, home)
    assert (streamed.fingerprint, len(streamed), streamed.name) == (
        store.fingerprint,
        100,
        store.name,
    )
    places = np.random.default_rng(1).integers(0, 100, 300)
    for column in store.columns:
        expected = store.gather(column, places)
        assert torch.equal(streamed.gather(column, places), expected)
        out = torch.empty_like(expected)
        assert streamed.gather(column, places, out) is out and torch.equal(out, expected)
        assert torch.equal(streamed.tensor(column), store.tensor(column))
    streamed.verify()
    streamed.close()


def test_buckets_are_streamed_as_one_store(tmp_path: Path, home: Home) -> None:
    store = bucketed(tmp_path / "s")
    streamed = stream(store.path, home)
    assert streamed.fingerprint == store.fingerprint
    for part, expected in zip(streamed.parts, store.parts, strict=True):
        part.expect(np.arange(part.layout.num_blocks))
        assert torch.equal(part.tensor("image"), expected.tensor("image"))
    streamed.close()


def test_blocks_are_fetched_once_and_then_read_from_the_nodes_disk(
    make_store: MakeStore, home: Home
) -> None:
    store = make_store(rows_per_block=7, rows_per_shard=21)
    streamed = stream(store.path, home)
    streamed.tensor("image")
    streamed.close()
    for shard in store.path.glob("*.arrow"):
        shard.unlink()
    again = stream(store.path, home)
    places = np.arange(99, -1, -1)
    again.gather("label", places)
    again.close()
    with pytest.raises(UserError, match=r"shard-00000-[0-9a-f]+\.arrow"):
        other = stream(store.path, Home(home.root.parent / "other"))
        try:
            other.gather("label", places)
        finally:
            other.close()


def test_a_block_altered_at_the_place_is_found_before_its_rows_are_used(
    make_store: MakeStore, home: Home
) -> None:
    store = make_store(rows_per_block=7, rows_per_shard=21)
    shard = store.path / store.manifest.shards[2].file
    content = bytearray(shard.read_bytes())
    image = store.tensor("image")[45].numpy().tobytes()
    content[bytes(content).index(image)] ^= 1
    shard.write_bytes(content)
    streamed = stream(store.path, home)
    streamed.gather("image", np.arange(42))
    with pytest.raises(UserError, match=rf"{shard.name} was altered"):
        streamed.gather("label", np.array([3, 42]))
    streamed.close()
