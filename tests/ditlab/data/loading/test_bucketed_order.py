"""Order and loader of a bucketed store: batches of one size, none twice, resumable anywhere."""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ditlab.data.loading import loader as loading
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.order import CHUNK_BATCHES, FullOrder
from ditlab.data.stores.view import View
from support.damage import refused
from support.datasets.bucketed import bucketed
from support.orders import epoch_batches

COLUMNS = ("image", "number")
seeds = st.integers(0, 2**63)
mixtures = st.lists(st.integers(0, 2), min_size=1, max_size=120)


def view_of(buckets):
    """Return the part of a view that an order reads, with rows in these buckets."""
    return SimpleNamespace(buckets=np.array(buckets), bucket_counts=np.bincount(buckets))


def batches_of(buckets, batch_size):
    return sum(buckets.count(bucket) // batch_size for bucket in set(buckets))


@settings(deadline=None)
@given(mixtures, st.integers(1, 9), seeds, st.integers(0, 5))
def test_batches_are_of_one_bucket_and_none_comes_twice(buckets, batch_size, seed, epoch):
    num = batches_of(buckets, batch_size)
    if not num:
        with refused(rf"batch\.size={batch_size} is larger than the "):
            FullOrder.from_view(view_of(buckets), batch_size, seed)
        return
    order = FullOrder.from_view(view_of(buckets), batch_size, seed)
    batches = epoch_batches(order, epoch)
    assert batches.shape == (num, batch_size) and order.batches_per_epoch == num
    assert len(set(batches.reshape(-1).tolist())) == num * batch_size
    assert order.left_out == len(buckets) - num * batch_size
    taken = np.array(buckets)[batches]
    assert (taken == taken[:, :1]).all()
    left_out = np.bincount(buckets) - np.bincount(taken.ravel(), minlength=max(buckets) + 1)
    assert left_out.max() < batch_size


@given(mixtures, seeds)
def test_order_depends_on_seed_and_epoch_alone_and_a_position_counts_samples(buckets, seed):
    assume(batches_of(buckets, 2))
    order, again = (FullOrder.from_view(view_of(buckets), 2, seed) for _ in range(2))
    num = order.batches_per_epoch
    for number in range(2 * num + 1):
        batch = order.batches(order.batch_number(number * 2), 1)[0]
        assert np.array_equal(batch, epoch_batches(again, number // num)[number % num])


def test_one_bucket_is_ordered_as_a_plain_store_is():
    for buckets in ([0] * 50, [2] * 50):
        order = FullOrder.from_view(view_of(buckets), 8, seed=3)
        assert np.array_equal(epoch_batches(order, 4), epoch_batches(FullOrder(50, 8, seed=3), 4))


def test_sizes_follow_each_other_in_chunks_and_epochs_differ():
    buckets = np.repeat([0, 1, 2], [400, 200, 100])
    order = FullOrder.from_view(view_of(buckets), 5, seed=0)
    sizes = [buckets[epoch_batches(order, epoch)[:, 0]] for epoch in (0, 1)]
    for size in sizes:
        assert np.bincount(size).tolist() == [80, 40, 20]
        changes = np.flatnonzero(np.diff(size)) + 1
        runs = np.diff([0, *changes, len(size)])
        assert set(runs % CHUNK_BATCHES) == {0}, "batches of all three sizes fill whole chunks here"
        assert 10 < len(runs) < 36, "which are mixed"
    assert not np.array_equal(*sizes)
    one, other = (epoch_batches(order, epoch)[sizes[epoch] == 2] for epoch in (0, 1))
    assert not np.array_equal(one, other)


def test_order_of_old_runs_is_unchanged():
    """A change of these numbers changes the next samples of every resumed run."""
    view = view_of([0] * 5 + [1] * 6 + [2] * 2)
    order = FullOrder.from_view(view, 2, seed=7)
    assert epoch_batches(order, 3).tolist() == [[2, 1], [4, 0], [12, 11], [7, 9], [8, 10], [6, 5]]
    with refused(r"batch\.size=8 is larger than the 6 training samples of the commonest of 3"):
        FullOrder.from_view(view, 8, seed=0)


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    store = bucketed(tmp_path_factory.mktemp("bucketed") / "s")  # 40, 9 and 23 rows
    return View(store, np.random.default_rng(1).permutation(72)[:65], "test")


@pytest.mark.parametrize("block_bytes", [1, 2000, 10**7])
@settings(deadline=None, max_examples=15)
@given(seed=seeds, stopped_after=st.integers(0, 28), depth=st.integers(1, 3))
def test_workers_take_every_batch_once_and_resume_where_they_stopped(
    view, block_bytes, seed, stopped_after, depth
):
    """Two workers before, one after; two epochs of 15 or 14 steps."""
    order = FullOrder.from_view(view, 4, seed)
    steps = 2 * order.batches_per_epoch
    seen: list[int] = []
    with patch.object(loading, "BLOCK_BYTES", block_bytes):
        for begin, end, world in ((0, stopped_after, 2), (stopped_after, steps, 1)):
            loaders = [
                Loader(
                    WorkerBatches(view, COLUMNS, order, 2, range(rank, 2, world)),
                    begin * 4,
                    depth=depth,
                    steps=end - begin,
                )
                for rank in range(world)
            ]
            for number, taken in enumerate(zip(*loaders, strict=True), start=begin):
                indices = order.batches(order.batch_number(number * 4), 1)[0]
                micros = [micro["image"] for step in taken for micro in step]
                assert [len(micro) for micro in micros] == [2, 2]
                assert torch.equal(torch.cat(micros), view.gather("image", indices))
                seen += view.rows[indices].tolist()
            for loader in loaders:
                assert loader.position == end * 4
                loader.close()
    for epoch in np.array(seen).reshape(2, -1):
        assert len(set(epoch.tolist())) == len(epoch) == steps // 2 * 4
