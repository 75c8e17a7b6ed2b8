"""Bucketed stores: what is written is read, and what replaces a set leaves one whole set at any
moment.
"""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ditlab.data.splits import open_data
from ditlab.data.stores.bucketed_store import BucketedStore, open_store
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.receipt import make_receipt
from ditlab.data.stores.store import Store
from ditlab.data.stores.writing import write_store
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData, HoldOutClasses
from ditlab_models.contract import ANY
from support.damage import refused
from support.datasets.bucketed import CLASSES, SIZES, bucketed, write


@pytest.fixture
def store(tmp_path):
    return bucketed(tmp_path / "s")


def folders(path):
    return {entry.name for entry in path.iterdir() if entry.is_dir()}


def test_rows_are_numbered_bucket_after_bucket_by_area(store):
    assert [bucket.size for bucket in store.manifest.buckets] == ["8x8", "16x4", "8x12"]
    assert len(store) == store.manifest.rows == 72
    assert store.tensor("number").tolist() == [*range(40), *range(9), *range(23)]
    assert store.bucket_of(np.array([0, 39, 40, 48, 49, 71])).tolist() == [0, 0, 1, 1, 2, 2]
    rows = np.array([51, 49, 71])
    images = store.gather("image", rows)
    assert images.shape == (3, 3, 8, 12)
    assert torch.equal(images, store.parts[2].tensor("image")[[2, 0, 22]])
    out = torch.empty_like(images)
    assert store.gather("image", rows, out) is out and torch.equal(out, images)
    assert store.gather("image", np.array([], np.int64)).shape[0] == 0


def test_columns_are_those_of_all_buckets_together(store, tmp_path):
    image, number, kind = (store.columns[name] for name in ("image", "number", "kind"))
    assert image.shape == (3, ANY, ANY) and number.shape == ()
    assert store.columns["words"].shape == (ANY,)
    assert image.value_range == (0, 255) and kind.names == CLASSES
    pixels = torch.cat([bucket.tensor("image").flatten() for bucket in store.parts]).double()
    found = image.statistics
    assert (found.count, found.min, found.max) == (len(pixels), pixels.min(), pixels.max())
    assert found.mean == pytest.approx(pixels.mean().item())
    assert found.std == pytest.approx(pixels.std(correction=0).item())
    assert kind.statistics.class_counts == (20 + 5 + 12, 20 + 4 + 11)
    assert bucketed(tmp_path / "one", {(8, 8): 5}).columns["image"].shape == (3, 8, 8)


def test_the_same_again_gives_the_same_and_other_rows_replace_all(tmp_path):
    path = tmp_path / "s"
    lost = make_receipt([], [], {"captions cut": 1})
    first = write(path, receipt=lost)
    assert first.store.manifest.receipt == lost
    again = write(path)
    assert again.store.fingerprint == first.store.fingerprint
    assert again.store.manifest.receipt is None, "but what is told of it is the newest import's"
    assert sorted(entry.name for entry in path.iterdir() if entry.is_file()) == ["buckets.json"]
    images = [bucket.tensor("image").clone() for bucket in first.store.parts]
    other = write(path, {(8, 8): 3, (12, 8): 4}, seed=1)
    assert other.store.fingerprint != first.store.fingerprint
    assert folders(path) == {bucket.folder for bucket in other.store.manifest.buckets}
    for before, now in zip(images, first.store.parts, strict=True):
        assert torch.equal(before, now.tensor("image")), "who had it open reads on"
    assert len(open_store(path)) == 7


def test_the_order_of_the_parts_and_the_batches_does_not_matter(tmp_path):
    there = bucketed(tmp_path / "a")
    back = bucketed(tmp_path / "b", dict(reversed(SIZES.items())))
    assert there.fingerprint == back.fingerprint
    assert bucketed(tmp_path / "c", {**SIZES, (8, 8): 41}).fingerprint != there.fingerprint


def test_until_the_manifest_is_in_place_the_old_set_is_whole(tmp_path, monkeypatch):
    """After a kill at any rename, the folder opens as the old set or as the new one."""
    old, new = bucketed(tmp_path / "old"), bucketed(tmp_path / "new", seed=1)
    renames = 0

    def counted(method):
        def moved(self, target):
            nonlocal renames
            renames += 1
            if renames == stops_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return method(self, target)

        return moved

    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    # the killed clean nothing up
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    for stops_at in range(1, 100):
        path = tmp_path / f"s{stops_at}"
        renames = -1000
        write(path)
        renames = 0
        try:
            write(path, seed=1)
        except UserError as error:
            assert "No space left on device" in str(error)
            assert BucketedStore.open(path).fingerprint == old.fingerprint
        else:
            assert BucketedStore.open(path).fingerprint == new.fingerprint
            break
    assert stops_at > 10, "three shards and manifests, three folders, the manifest"
    monkeypatch.undo()
    leftovers = tmp_path / "s1"
    assert any(name.startswith(".partial") for name in folders(leftovers))
    write(leftovers, seed=1)
    assert folders(leftovers) == {bucket.folder for bucket in new.manifest.buckets}


def test_a_damaged_bucket_is_found_and_repaired(store):
    shard = next(store.parts[1].path.glob("*.arrow"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refused(r"16x4-.*was altered"):
        open_store(store.path)
    write(store.path)
    assert open_store(store.path).fingerprint == store.fingerprint


def test_a_bucket_of_another_set_is_refused(store, tmp_path):
    other = bucketed(tmp_path / "t", seed=1)
    shutil.rmtree(store.parts[0].path)
    shutil.copytree(other.parts[0].path, store.parts[0].path)
    with refused(r"is not the store that buckets\.json beside it names"):
        open_store(store.path)
    shutil.rmtree(store.parts[0].path)
    with refused("holds no store"):
        open_store(store.path)


def test_a_folder_holds_one_store(store, make_store):
    plain = make_store()
    columns, rows = {"x": Column(dtype="int64")}, [{"x": np.arange(3)}]
    with refused("holds a store with buckets; choose another name"):
        write_store(store.path, columns, rows, name="s", description="", source=Source(kind="test"))
    assert isinstance(open_store(plain.path), Store)
    assert isinstance(open_store(store.path), BucketedStore)


def test_an_experiment_opens_it_by_name(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bucketed(home.stores / "photographs")
    splits = open_data(ArrowData(path="photographs", hold_out=0.25), home)
    assert (splits.name, len(splits.train), len(splits.held_out)) == ("photographs", 54, 18)
    assert np.bincount(splits.held_out.buckets).tolist() == [10, 2, 6]
    classes = HoldOutClasses(column="kind", values=("odd",))
    odd = open_data(ArrowData(path="photographs", hold_out=classes), home)
    kinds = splits.held_out.store.tensor("kind").numpy()
    assert len(odd.held_out) == 35 and set(kinds[odd.held_out.rows]) == {1}
