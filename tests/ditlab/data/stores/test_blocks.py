"""Stores in blocks: the index against hashes worked out by hand, damage found at the first use."""

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from ditlab.data.stores.block_index import unpack_entries
from ditlab.data.stores.blocks import arrow_schema, read_block
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.writer import WrittenShard, finish_store, write_shards
from ditlab.errors import UserError
from support.damage import refused
from support.datasets.writing import written

COLUMNS = {
    "image": Column(dtype="uint8", shape=(3, 5), value_range=(0, 255)),
    "odd": Column(dtype="bool"),
}


def test_each_block_has_its_place_and_its_hashes(make_store):
    store = make_store(rows_per_block=7, rows_per_shard=21)
    assert [shard.rows for shard in store.manifest.shards] == [21, 21, 21, 21, 16]
    assert store.layout.num_blocks == 4 * 3 + 3
    index = (store.path / store.manifest.index.file).read_bytes()
    images, labels = store.tensor("image").numpy(), store.tensor("label").numpy()
    entries = unpack_entries(index, 2)
    schema = arrow_schema(store.columns)
    every = np.arange(15)
    nums = store.layout.rows_of(every).tolist()
    shards = store.layout.shard_of(every).tolist()
    start = 0
    of_images = b""
    for entry, num, shard in zip(entries, nums, shards, strict=True):
        rows = slice(start, start + num)
        content = (store.path / store.manifest.shards[shard].file).read_bytes()
        message = content[entry.offset : entry.offset + entry.length]
        found = read_block(pa.py_buffer(message), store.columns, schema, num)
        assert np.array_equal(found["image"], images[rows])
        hashes = [hashlib.sha256(values[rows].tobytes()).digest() for values in (images, labels)]
        assert [*entry.digests] == hashes
        of_images += struct.pack("<Q", num) + hashes[0]
        start += num
    assert start == 100
    assert store.columns["image"].sha256 == hashlib.sha256(of_images).hexdigest()


def test_the_fingerprint_depends_on_blocks_and_not_on_shards(make_store):
    first, *others = (
        make_store(name=f"s{rows}", rows_per_block=7, rows_per_shard=rows).fingerprint
        for rows in (7, 14, 35, 700)
    )
    assert others == [first] * 3
    assert make_store(name="other", rows_per_block=8).fingerprint != first


def test_of_threads_that_read_a_flipped_block_none_gets_its_rows(make_store):
    whole = make_store(rows_per_block=7)
    flip_row(whole.path, whole.manifest.shards[0].file, whole.tensor("image")[50].numpy())
    store = verifying(whole.path)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(store.gather, "image", np.arange(100)) for _ in range(8)]
    assert all(isinstance(each.exception(), UserError) for each in found)
    assert len(store.gather("image", np.arange(49))) == 49


LARGE = {"image": Column(dtype="uint8", shape=(1000,))}


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (3000, 1000), dtype=np.uint8)


@pytest.fixture
def large(tmp_path, image):
    """A store of one shard of three blocks of 1,000 rows, in pieces of 65, with an attachment."""
    files = {"tokenizer.json": b"one"}
    return written(
        tmp_path / "large", LARGE, {"image": image}, rows_per_block=1000, attachments=files
    ).path


def verifying(path):
    """Open a small store as a large one is opened."""
    store = Store.open(path, verify=False)
    store.verifies_blocks = True
    return store


def test_a_flipped_byte_costs_its_piece_and_rows_of_others_are_read(large, image):
    (shard,) = large.glob("*.arrow")
    flip_row(large, shard.name, image[1500])
    store = verifying(large)
    assert len(store.gather("image", np.array([0, 2999, 1400, 1560]))) == 4
    for row in (1500, 1499, 1500):  # the piece's rows are 1,495 to 1,559
        with refused("was altered: block 2 of 3 differs from its hash"):
            store.gather("image", np.array([0, row]))
    assert store.verifies_blocks
    with refused("was altered: its SHA-256"):
        store.verify()


def test_pieces_are_hashed_until_all_of_them_were(tmp_path, image):
    written(tmp_path / "s", LARGE, {"image": image[:2100]}, rows_per_block=1000)
    store = verifying(tmp_path / "s")  # 16 pieces of 65 rows each, and 2 of the last block's 100
    for first, stop in ((0, 1000), (1000, 2000), (2000, 2065), (2065, 2100)):
        found = store.gather("image", np.arange(first, stop))
        assert np.array_equal(found.numpy(), image[first:stop])
        assert store.verifies_blocks == (stop < 2100)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*.arrow", "its SHA-256.*import the data again"),
        ("*.pieces", "its SHA-256.*import the data again"),
        ("blocks-*.bin", "its (SHA-256|entries do not give)"),
        ("*.json", "its SHA-256"),
    ],
)
def test_every_file_of_a_store_is_checked(large, pattern, words):
    (file,) = (each for each in large.glob(pattern) if each.name != "store.json")
    content = file.read_bytes()
    file.write_bytes(flipped(content, len(content) - 1))
    with refused(rf"{file.name} was altered: {words}"):
        Store.open(large)
    if pattern != "*.json":  # whose size no manifest has
        file.write_bytes(content[:-1])
        with refused(rf"{file.name} was altered: it has \d+ bytes"):
            Store.open(large, verify=False)
    file.unlink()
    with refused(rf"{file.name} is missing.*import the data again"):
        Store.open(large, verify=False)


def test_the_index_and_digests_of_pieces_are_checked_as_they_are_read(large):
    (pieces,) = large.glob("*.pieces")
    content = pieces.read_bytes()
    assert len(content) == 16 * 3 * 16, "16 pieces a block, 16 bytes each"
    pieces.write_bytes(flipped(content, -1))
    with refused(rf"{pieces.name} was altered: it differs"):
        verifying(large).gather("image", np.array([0]))
    (index,) = large.glob("blocks-*.bin")
    index.write_bytes(flipped(index.read_bytes(), 40))
    with refused(rf"{index.name} was altered: its entries do not give"):
        Store.open(large, verify=False)


def flipped(content, at):
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


def flip_row(path, shard, row):
    """Flip a bit of a row in a shard."""
    content = (path / shard).read_bytes()
    (path / shard).write_bytes(flipped(content, content.index(row.tobytes())))


def test_rows_larger_than_a_copy_are_gathered(tmp_path, image):
    image = image.reshape(-1, 60_000)[:9]
    columns = {"image": Column(dtype="uint8", shape=(60_000,))}
    batches = [{"image": image[begin : begin + 3]} for begin in (0, 3, 6)]
    store = written(tmp_path / "store", columns, *batches, rows_per_block=2)
    places = np.array([8, 0, 3, 8, 5, 1])
    assert np.array_equal(store.gather("image", places).numpy(), image[places])


def test_shards_of_several_writers_make_one_store(tmp_path, image):
    whole = {"image": image[:100, :15].reshape(100, 3, 5), "odd": np.arange(100) % 2 == 1}
    rows = [slice(0, 40), slice(40, 41), slice(41, 100)]
    stores = []
    for order in ((0, 1, 2), (2, 0, 1)):
        folder = tmp_path / str(order)
        folder.mkdir()
        shards = {}
        for number in order:
            batch = {name: values[rows[number]] for name, values in whole.items()}
            (shard,) = write_shards(folder, f"part-{number:03d}", COLUMNS, [batch])
            shards[number] = WrittenShard.model_validate_json(shard.model_dump_json())
        records = [shards[number] for number in range(3)]
        finish_store(folder, COLUMNS, records, name="joined", source=Source(kind="test"))
        stores.append(Store.open(folder))
    for store in stores:
        assert np.array_equal(store.tensor("image").numpy(), whole["image"])
        assert store.tensor("odd").tolist() == whole["odd"].tolist()
        assert store.columns["image"].statistics.count == 1500
    assert stores[0].manifest == stores[1].manifest
