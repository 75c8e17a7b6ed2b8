"""Stores in blocks: the index against hashes worked out by hand, damage found at the first use."""

import hashlib
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ditlab.data.stores import writer
from ditlab.data.stores.block_index import unpack_entries
from ditlab.data.stores.blocks import arrow_schema, read_block
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import WrittenShard, finish_store, write_batches, write_shards
from ditlab.errors import UserError

COLUMNS = {
    "image": Column(dtype="uint8", shape=(3, 5), value_range=(0, 255)),
    "odd": Column(dtype="bool"),
}
MakeStore = Callable[..., Store]


def rows(num: int) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (num, 3, 5), dtype=np.uint8)
    return {"image": images, "odd": np.arange(num) % 2 == 1}


def test_each_block_has_its_place_and_its_hashes(make_store: MakeStore) -> None:
    store = make_store(rows_per_block=7, rows_per_shard=21)
    assert [shard.rows for shard in store.manifest.shards] == [21, 21, 21, 21, 16]
    assert store.layout.num_blocks == 4 * 3 + 3
    index = (store.path / store.manifest.index.file).read_bytes()
    images, labels = store.tensor("image").numpy(), store.tensor("label").numpy()
    entries = unpack_entries(index, 2)
    schema, start, of_images = arrow_schema(store.columns), 0, b""
    for block, entry in enumerate(entries):
        num = int(store.layout.rows_of(np.array([block]))[0])
        shard = store.manifest.shards[int(store.layout.shard_of(np.array([block]))[0])]
        message = (store.path / shard.file).read_bytes()[entry.offset : entry.offset + entry.length]
        found = read_block(pa.py_buffer(message), store.columns, schema, num)
        assert np.array_equal(found["image"], images[start : start + num])
        assert entry.digests[0] == hashlib.sha256(images[start : start + num].tobytes()).digest()
        assert entry.digests[1] == hashlib.sha256(labels[start : start + num].tobytes()).digest()
        of_images += struct.pack("<Q", num) + entry.digests[0]
        start += num
    assert start == 100
    assert store.columns["image"].sha256 == hashlib.sha256(of_images).hexdigest()


def test_the_fingerprint_depends_on_blocks_and_not_on_shards(make_store: MakeStore) -> None:
    prints = {
        shard_rows: make_store(
            name=f"s{shard_rows}", rows_per_block=7, rows_per_shard=shard_rows
        ).fingerprint
        for shard_rows in (7, 14, 35, 700)
    }
    assert len(set(prints.values())) == 1
    assert make_store(name="other", rows_per_block=8).fingerprint != prints[7]


@pytest.mark.parametrize(
    "options", [{}, {"rows_per_block": 7, "rows_per_shard": 35}, {"rows_per_block": 9}]
)
def test_rows_are_gathered_in_any_order(make_store: MakeStore, options: dict[str, int]) -> None:
    store = make_store(**options)
    places = np.random.default_rng(1).integers(0, 100, 250)
    for column in store.columns:
        whole = store.tensor(column)
        assert torch.equal(store.gather(column, places), whole[torch.from_numpy(places)])
        out = torch.empty(250, *whole.shape[1:], dtype=whole.dtype)
        assert store.gather(column, places, out) is out and torch.equal(
            out, whole[torch.from_numpy(places)]
        )


def test_a_flipped_byte_is_found_when_its_block_is_first_read(make_store: MakeStore) -> None:
    path = make_store(rows_per_block=7, rows_per_shard=35).path
    shard = path / Store.open(path).manifest.shards[1].file
    content = bytearray(shard.read_bytes())
    # of the shard's second block
    image = Store.open(path).tensor("image")[35 + 8].numpy().tobytes()
    content[bytes(content).index(image)] ^= 1
    shard.write_bytes(content)
    store = verifying(path)
    store.gather("image", np.arange(35, 42))
    for _ in range(2):
        with pytest.raises(
            UserError, match=rf"{shard.name} was altered: block 2 of 5 differs from its hash"
        ):
            store.gather("image", np.array([0, 35 + 7]))
    with pytest.raises(UserError, match=rf"{shard.name} was altered: its SHA-256"):
        store.verify()
    with pytest.raises(UserError, match=rf"{shard.name} was altered: its SHA-256"):
        Store.open(path)


def test_of_threads_that_read_a_flipped_block_none_gets_its_rows(make_store: MakeStore) -> None:
    path = make_store(rows_per_block=7).path
    (shard,) = Store.open(path).manifest.shards
    content = bytearray((path / shard.file).read_bytes())
    image = Store.open(path).tensor("image")[50].numpy().tobytes()
    content[bytes(content).index(image)] ^= 1
    (path / shard.file).write_bytes(content)
    store = verifying(path)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(store.gather, "image", np.arange(100)) for _ in range(8)]
    assert all(isinstance(each.exception(), UserError) for each in found)
    assert len(store.gather("image", np.arange(49))) == 49


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A store of one shard of three blocks of 1,000 rows, in pieces of 65; a byte of row 1,500 is
    flipped.
    """
    image = np.random.default_rng(0).integers(0, 256, (3000, 1000), dtype=np.uint8)
    columns = {"image": Column(dtype="uint8", shape=(1000,))}
    store = tmp_path / "large"
    write_batches(
        store,
        columns,
        [{"image": image}],
        name="large",
        source=Source(kind="test"),
        rows_per_block=1000,
    )
    (shard,) = store.glob("*.arrow")
    content = bytearray(shard.read_bytes())
    content[bytes(content).index(image[1500].tobytes())] ^= 1
    shard.write_bytes(content)
    return store


def verifying(path: Path) -> Store:
    """Open a small store as a large one is opened."""
    store = Store.open(path, verify=False)
    store.verifies_blocks = True
    return store


def test_a_flipped_byte_costs_its_piece_and_rows_of_others_are_read(large: Path) -> None:
    store = verifying(large)
    assert len(store.gather("image", np.array([0, 2999, 1400, 1560]))) == 4
    for row in (1500, 1499, 1500):  # the piece's rows are 1,495 to 1,559
        with pytest.raises(UserError, match="was altered: block 2 of 3 differs from its hash"):
            store.gather("image", np.array([0, row]))
    assert store.verifies_blocks
    with pytest.raises(UserError, match="was altered: its SHA-256"):
        store.verify()


def test_pieces_are_hashed_until_all_of_them_were(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (2100, 1000), dtype=np.uint8)
    columns = {"image": Column(dtype="uint8", shape=(1000,))}
    write_batches(
        tmp_path / "s",
        columns,
        [{"image": image}],
        name="s",
        source=Source(kind="t"),
        rows_per_block=1000,
    )
    store = verifying(tmp_path / "s")  # 16 pieces of 65 rows each, and 2 of the last block's 100
    for first, stop, left in (
        (0, 1000, True),
        (1000, 2000, True),
        (2000, 2065, True),
        (2065, 2100, False),
    ):
        assert np.array_equal(
            store.gather("image", np.arange(first, stop)).numpy(), image[first:stop]
        )
        assert store.verifies_blocks == left


def test_altered_digests_of_pieces_are_found(large: Path) -> None:
    (pieces,) = large.glob("*.pieces")
    content = bytearray(pieces.read_bytes())
    assert len(content) == 16 * 3 * 16, "16 pieces a block, 16 bytes each"
    content[-1] ^= 1
    pieces.write_bytes(content)
    with pytest.raises(UserError, match=rf"{pieces.name} was altered: it differs"):
        verifying(large).gather("image", np.array([0]))
    pieces.unlink()
    with pytest.raises(UserError, match=rf"{pieces.name} is missing"):
        Store.open(large, verify=False)


def test_rows_larger_than_a_copy_are_gathered(tmp_path: Path) -> None:
    columns = {"image": Column(dtype="uint8", shape=(60_000,))}
    image = np.random.default_rng(0).integers(0, 256, (9, 60_000), dtype=np.uint8)
    pieces = [{"image": image[begin : begin + 3]} for begin in (0, 3, 6)]
    write_batches(
        tmp_path / "store",
        columns,
        pieces,
        name="large",
        source=Source(kind="test"),
        rows_per_block=2,
    )
    store = Store.open(tmp_path / "store")
    places = np.array([8, 0, 3, 8, 5, 1])
    assert np.array_equal(store.gather("image", places).numpy(), image[places])


def test_an_altered_index_is_found(make_store: MakeStore) -> None:
    store = make_store(rows_per_block=7, rows_per_shard=35)
    index = store.path / store.manifest.index.file
    content = bytearray(index.read_bytes())
    content[40] ^= 1
    index.write_bytes(content)
    with pytest.raises(UserError, match=rf"{index.name} was altered: its entries do not give"):
        Store.open(store.path, verify=False)
    index.write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{index.name} was altered: it has"):
        Store.open(store.path, verify=False)
    index.unlink()
    with pytest.raises(UserError, match=rf"{index.name} is missing"):
        Store.open(store.path)


def test_shards_of_several_writers_make_one_store(tmp_path: Path) -> None:
    whole = rows(100)
    cut = [
        {name: values[a:b] for name, values in whole.items()}
        for a, b in ((0, 40), (40, 41), (41, 100))
    ]
    for folder, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        (tmp_path / folder).mkdir()
        written = {
            n: write_shards(tmp_path / folder, f"part-{n:03d}", COLUMNS, [cut[n]]) for n in order
        }
        records = [
            WrittenShard.model_validate_json(shard.model_dump_json())
            for n in sorted(written)
            for shard in written[n]
        ]
        finish_store(
            tmp_path / folder,
            COLUMNS,
            records,
            name="joined",
            description="",
            source=Source(kind="test"),
        )
    stores = [Store.open(tmp_path / folder) for folder in "ab"]
    for store in stores:
        assert np.array_equal(store.tensor("image").numpy(), whole["image"])
        assert store.tensor("odd").tolist() == whole["odd"].tolist()
        statistics = store.columns["image"].statistics
        assert statistics.mean == pytest.approx(whole["image"].mean()) and statistics.count == 1500
        assert statistics.std == pytest.approx(whole["image"].std())
    assert stores[0].manifest == stores[1].manifest
    files = [sorted(file.name for file in (tmp_path / folder).iterdir()) for folder in "ab"]
    assert files[0] == files[1] and len(files[0]) == 5


def test_writers_that_fail_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARD_BYTES", 1)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield rows(10)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        write_shards(tmp_path, "part", COLUMNS, batches())
    bad = {"class": Column(dtype="int64", num_classes=2)}
    with pytest.raises(UserError, match="holds classes 0 to 5"):
        write_shards(tmp_path, "part", bad, [{"class": np.array([0, 5])}])
    assert not list(tmp_path.iterdir())


def test_a_single_blocks_hash_is_that_of_its_elements(make_store: MakeStore) -> None:
    store = make_store()
    elements = store.tensor("image").numpy().tobytes()
    assert (
        store.layout.num_blocks == 1
        and store.columns["image"].sha256 == hashlib.sha256(elements).hexdigest()
    )
