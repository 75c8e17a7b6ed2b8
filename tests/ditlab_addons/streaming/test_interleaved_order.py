"""Order by streams: every sample once, each stream in its slice, any batch by itself, in little
memory.
"""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab_addons.streaming.sharded_order import ShardedOrder

seeds = st.integers(0, 2**63 - 1)
layouts = st.builds(
    BlockLayout, st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(1, 30)
)


def view_of(*layouts, share=0.1):
    """Return a view of the training rows of a store with nothing but its layout."""
    store = SimpleNamespace(parts=[SimpleNamespace(layout=layout) for layout in layouts])
    return View(store, hold_out_blocks(store, share)[0], "test")


def order_of(parts, size, seed, streams, window, share=0.1):
    return ShardedOrder.from_view(view_of(*parts, share=share), size, seed, streams, window)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(layouts, min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    seeds,
)
def test_an_epoch_takes_every_sample_once_but_the_last_few(
    parts, streams, slice_rows, window, seed
):
    view, size = view_of(*parts), streams * slice_rows
    counts = view.bucket_counts
    if counts.max() < size:
        with pytest.raises(UserError, match=rf"batch\.size={size} is larger than the "):
            ShardedOrder.from_view(view, size, seed, streams, window)
        return
    order = ShardedOrder.from_view(view, size, seed, streams, window)
    num = order.batches_per_epoch
    taken = order.batches(num, num)
    assert taken.shape == (num, size) and taken.dtype == np.int64
    assert len(np.unique(taken)) == taken.size == len(view) - order.left_out
    assert taken.min() >= 0 and taken.max() < len(view)
    ends = np.cumsum(counts)
    buckets = np.searchsorted(ends, taken, side="right")
    assert (buckets == buckets[:, :1]).all(), "a batch is of one bucket"
    left = counts - np.bincount(buckets.reshape(-1), minlength=len(counts))
    assert (left < size + streams).all()
    number = 0
    while number < num:
        part, run = order.shape_run(num + number, 7)
        assert (buckets[number : number + run] == part).all() and 1 <= run <= 7
        number += run


@settings(max_examples=12, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=2), st.integers(1, 4), seeds, st.data())
def test_any_batches_and_columns_are_those_of_the_whole(parts, streams, seed, data):
    assume(max(part.rows for part in parts) > 40)
    order = order_of(parts, 2 * streams, seed, streams, 2)
    num = order.batches_per_epoch
    whole = order.batches(0, 2 * num)
    first = data.draw(st.integers(0, 2 * num - 1))
    count = data.draw(st.integers(0, 2 * num - first))
    columns = np.array(data.draw(st.lists(st.integers(0, 2 * streams - 1), min_size=1)))
    fresh = order_of(parts, 2 * streams, seed, streams, 2)
    assert np.array_equal(
        fresh.batches(first, count, columns), whole[first : first + count][:, columns]
    )


@pytest.mark.parametrize("world", [1, 2, 4])
def test_workers_take_their_own_streams_alone(world):
    order = order_of([BlockLayout([4000, 3000], 20)], 32, 5, 8, 4)
    num = order.batches_per_epoch
    slices = [order.batches(0, num, share) for share in np.split(np.arange(32), world)]
    # in the view's own numbers: nearly blocks
    blocks = [set((part // 20).reshape(-1).tolist()) for part in slices]
    for one in range(world):
        for other in range(one):
            assert len(blocks[one] & blocks[other]) < 30, "streams share blocks at their ends alone"
    assert sum(map(len, blocks)) < len(set.union(*blocks)) + 30 * world


def test_rows_of_a_batch_come_from_windows_and_blocks_stay_together():
    """Rows of one window of three blocks lie in four at most, as its ends need not be a block's."""
    layout = BlockLayout([10_000], 50)
    order = order_of([layout], 16, 1, 4, 3, share=0.0)
    stream = order.batches(0, order.batches_per_epoch, np.arange(4)).reshape(-1)
    windows = [layout.blocks_of(part) for part in np.split(stream, np.arange(1, 17) * 2500 // 17)]
    assert max(len(set(blocks.tolist())) for blocks in windows) <= 4
    assert np.mean([len(set(blocks.tolist())) for blocks in windows]) > 2.5
    seen = layout.blocks_of(stream)
    last = {block: np.flatnonzero(seen == block)[[0, -1]] for block in np.unique(seen).tolist()}
    assert max(stop - start for start, stop in last.values()) < 2 * 160, (
        "a block is read within two windows"
    )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(layouts, min_size=1, max_size=2),
    st.integers(1, 3),
    st.integers(1, 4),
    seeds,
    st.data(),
)
def test_rows_are_announced_before_they_are_taken(parts, streams, window, seed, data):
    """Also where a batch takes several windows."""
    assume(max(part.rows for part in parts) > 60)
    parts = [*parts, BlockLayout([3], 2)]  # a bucket that fills no batch, or hardly one
    size = data.draw(st.sampled_from([2, 9])) * streams
    order = order_of(parts, size, seed, streams, window)
    columns = np.arange(size)[data.draw(st.integers(0, 1)) :: 2]
    batch = data.draw(st.integers(0, 2 * order.batches_per_epoch))
    upcoming = order.upcoming(batch, columns)
    announced = np.concatenate([np.arange(*pair) for pair in upcoming.ranges])
    assert upcoming.until > batch
    # one batch more: what comes next is announced already
    taken = order.batches(batch, upcoming.until - batch + 1, columns).reshape(-1)
    assert set(taken.tolist()) <= set(announced.tolist())
    assert len(set(announced.tolist())) <= len(announced) <= 2 * sum(part.rows for part in parts)


def test_epochs_seeds_and_settings_differ():
    parts = [BlockLayout([3000], 10)]
    order = order_of(parts, 20, 7, 4, 8)
    num = order.batches_per_epoch
    assert not np.array_equal(order.batches(0, 3), order.batches(num, 3))
    for fields in ((8, 4, 8), (7, 5, 8), (7, 4, 9)):
        other = order_of(parts, 20, *fields)
        assert not np.array_equal(order.batches(0, 3), other.batches(0, 3))


def test_order_is_the_same_for_good():
    """A change of these numbers changes the next samples of every resumed run whose order is of
    streams.
    """
    order = order_of([BlockLayout([900, 330], 10)], 8, 3, 2, 4)
    assert order.batches_per_epoch == 138
    assert order.batches(200, 1)[0].tolist() == [185, 565, 262, 610, 15, 1006, 1002, 1092]
    order = order_of([BlockLayout([90], 10), BlockLayout([330], 5)], 8, 3, 2, 4)
    assert order.batches(60, 2).tolist() == [
        [280, 188, 331, 83, 190, 170, 339, 326],
        [84, 376, 346, 82, 103, 100, 192, 109],
    ]


def test_small_stores_are_mixed_between_streams_too():
    """A store of one block is cut: rows change streams from epoch to epoch."""
    order = order_of([BlockLayout([4000], 4000)], 8, 0, 4, 2, share=0.0)
    num = order.batches_per_epoch
    streams = [
        set(order.batches(epoch * num, num, np.arange(2)).reshape(-1).tolist()) for epoch in (0, 1)
    ]
    assert len(streams[0] & streams[1]) < 0.4 * 1000, "a quarter stays by chance"


def test_many_rows_answer_at_once():
    """Start-up, a batch, and a resume at the end of an epoch; memory is that of units and
    blocks.
    """
    tracemalloc.start()
    try:
        order = order_of([BlockLayout([10**7] * 100, 2000)], 4096, 0, 64, 16)
        num = order.batches_per_epoch
        assert abs(num * 4096 - 0.9e9) < 1e6
        for batch in (0, num - 1, 3 * num + num // 2):
            assert len(np.unique(order.batches(batch, 1))) == 4096
        assert tracemalloc.get_traced_memory()[1] < 80e6
    finally:
        tracemalloc.stop()
