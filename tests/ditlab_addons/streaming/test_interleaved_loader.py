"""Loader in the order of streams: workers take slices of one order, resumable anywhere, rows
announced ahead.
"""

import numpy as np
import pytest

from ditlab.data.loading import loader
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab_addons.streaming.sharded_order import ShardedOrder
from support.datasets.bucketed import bucketed

BATCH, MICRO, STREAMS = 8, 2, 4
STEPS = 26  # of 11 or 10 an epoch


class AnnouncedStore(Store):
    """A store that takes note of announced blocks, and of those read."""

    def expect(self, blocks):
        self.expected.update(blocks.tolist())

    def gather(self, column, rows, out=None):
        self.read.update(self.layout.blocks_of(rows).tolist())
        return super().gather(column, rows, out)


@pytest.fixture(params=["plain", "bucketed"])
def view(request, make_store, tmp_path):
    if request.param == "plain":
        store = make_store(rows=100, rows_per_shard=30, rows_per_block=3)
    else:
        store = bucketed(tmp_path / "set", {(8, 12): 33, (8, 8): 60, (16, 4): 3})
    for part in store.parts:
        part.__class__ = AnnouncedStore
        part.expected, part.read = set(), set()
    return View(store, hold_out_blocks(store, 0.1)[0], "test")


def steps_of(view, order, micros, start, stop):
    """Return the images of each of a worker's steps."""
    batches = WorkerBatches(view, ("image",), order, MICRO, micros)
    with Loader(batches, start * BATCH, steps=stop - start) as loader:
        return [np.concatenate([micro["image"].numpy() for micro in step]) for step in loader]


@pytest.mark.parametrize("block_bytes", [pytest.param(1, marks=pytest.mark.slow), 10**7])
def test_any_number_of_workers_and_any_stop_give_the_same_steps(view, block_bytes, monkeypatch):
    monkeypatch.setattr(loader, "BLOCK_BYTES", block_bytes)
    order = ShardedOrder.from_view(view, BATCH, 5, STREAMS, 2)
    expected = [
        view.gather("image", order.batches(number, 1)[0]).numpy() for number in range(STEPS)
    ]
    for worlds in ([1], [2], [4], [1, 4, 2]):
        cuts = np.arange(len(worlds) + 1) * STEPS // len(worlds)
        for world, start, stop in zip(worlds, cuts, cuts[1:], strict=False):
            fresh = [ShardedOrder.from_view(view, BATCH, 5, STREAMS, 2) for _ in range(world)]
            micros = np.split(np.arange(BATCH // MICRO), world)
            workers = [
                steps_of(view, *pair, start, stop) for pair in zip(fresh, micros, strict=True)
            ]
            for number, parts in enumerate(zip(*workers, strict=True), start=start):
                assert np.array_equal(np.concatenate(parts), expected[number])


def test_every_block_that_is_read_is_announced_and_hardly_any_other(view):
    order = ShardedOrder.from_view(view, BATCH, 5, STREAMS, 2)
    # a stream of an epoch's last steps, and the first step of the next
    steps_of(view, order, [1], 7, 11)
    assert any(part.read for part in view.store.parts)
    for part in view.store.parts:
        assert part.read <= part.expected and len(part.expected) <= 25
