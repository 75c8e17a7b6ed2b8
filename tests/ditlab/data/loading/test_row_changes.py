"""Training samples are mirrored, and take one of several captions, by seed and draw alone; held-out
ones never.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import caption_column, encode_captions
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.order import FullOrder
from ditlab.data.splits import _changed, _split
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.row_changes import RowChanges
from ditlab.data.stores.view import View
from ditlab.data.stores.writing import write_store
from ditlab.spec.data import ArrowData
from ditlab_addons.check.prove.reference import change_sample
from support.damage import refused

LINES = (b"a dog", b"ein Hund", b"un chien")
HALF = (RowChanges(60, flip=0.5, one_caption=True), RowChanges(90))
"""Rows 0 to 59 change, 60 to 89 do not, as of a mixture's parts."""


@pytest.fixture
def store(tmp_path):
    columns = {
        "image": Column(dtype="uint8", shape=(1, 2, 3), value_range=(0, 255)),
        "caption": caption_column(32),
    }
    images = np.arange(90 * 6).reshape(90, 1, 2, 3).astype(np.uint8)
    rows = {"image": images, "caption": encode_captions([b"\n".join(LINES)] * 90, 32)}
    facts = {"name": "s", "description": "", "source": Source(kind="test")}
    return write_store(tmp_path / "s", columns, [rows], **facts).store


def steps(view, workers, position=0, num=40, seed=5):
    """Global batches of a run of a number of workers, (num, 6, *shape) by column."""
    images = torch.zeros(num, 6, 1, 2, 3, dtype=torch.uint8)
    captions = torch.zeros(num, 6, 32, dtype=torch.uint8)
    found = {"image": images, "caption": captions}
    for worker in range(workers):
        share = range(worker, 6, workers)
        batches = WorkerBatches(view, (*found,), FullOrder(90, 6, seed=1), 1, share, seed)
        with Loader(batches, position, steps=num) as loader:
            for step, micros in enumerate(loader):
                for place, micro in zip(share, micros, strict=True):
                    for name, values in found.items():
                        values[step, place] = micro[name][0]
    return found


def test_draws_depend_on_seed_and_draw_alone(store):
    """Not on workers, nor on where the run goes on; and they are those of the reference."""
    view = View(store, np.arange(90), "test", HALF)
    one = steps(view, 1)
    for name, values in steps(view, 3).items():
        assert values.equal(one[name])
    assert steps(view, 2, position=6 * 25, num=15)["image"].equal(one["image"][25:])
    assert not steps(view, 1, seed=6)["image"].equal(one["image"])
    order, mirrored, taken = FullOrder(90, 6, seed=1).batches(0, 40), [], []
    for draw, row in enumerate(order.reshape(-1).tolist()):
        raw = {name: store.gather(name, np.array([row])) for name in ("image", "caption")}
        stored = raw["image"].clone()
        change_sample(raw, 0, HALF[0] if row < 60 else HALF[1], 5, draw)
        for name, values in one.items():
            assert values.reshape(-1, *values.shape[2:])[draw].equal(raw[name][0])
        if row < 60:
            mirrored.append(not stored.equal(raw["image"]))
            taken.append(raw["caption"][0].numpy().tobytes().rstrip(b"\0"))
    assert abs(np.mean(mirrored) - 0.5) < 0.13  # 160 draws, three standard errors
    assert all(abs(taken.count(line) / len(taken) - 1 / 3) < 0.12 for line in LINES)


def test_held_out_rows_are_not_mirrored_and_have_their_first_caption(store):
    view = View(store, np.arange(90), "test", HALF)
    assert view.gather("image", np.arange(90)).equal(store.tensor("image"))
    captions = [bytes(each).rstrip(b"\0") for each in view.gather("caption", np.arange(90)).numpy()]
    assert captions == [LINES[0]] * 60 + [b"\n".join(LINES)] * 30


@pytest.mark.parametrize(
    ("fields", "column", "words"),
    [
        ({"flip": 0.5}, "tokens", "data.flip=0.5 holds no column image"),
        ({"captions": "one"}, "image", "data.captions=one holds no column caption"),
        ({"flip": 0.5}, "image image_features", "holds image_features of an encoder"),
        ({"captions": "one"}, "caption text", "holds text of an encoder"),
    ],
)
def test_stores_that_cannot_be_changed(store, fields, column, words):
    held = SimpleNamespace(columns=dict.fromkeys(column.split()), origin="data.path=s")
    splits = SimpleNamespace(train=held, held_out=held)
    with refused(words):
        _changed(splits, ArrowData(path="s", **fields))


def test_a_spec_changes_both_views(store):
    data = ArrowData(path="s", flip=0.25, captions="one")
    splits = _changed(_split(store, 0.1, "data.path=s"), data)
    assert splits.train.changes == splits.held_out.changes == (RowChanges(90, 0.25, True),)
    assert _changed(splits, ArrowData(path="s")) is splits
