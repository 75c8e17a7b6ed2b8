"""Rows held out by whole blocks, computed: a function of the store's layout and the share alone."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.held_out import (
    FEWEST_BLOCKS,
    FEWEST_ROWS,
    WINDOW_BLOCKS,
    held_out_blocks,
    hold_out_blocks,
    hold_out_layout,
)
from ditlab.data.stores.block_index import BlockLayout

layouts = st.builds(
    BlockLayout, st.lists(st.integers(1, 700), min_size=1, max_size=6), st.integers(1, 40)
)
shares = st.floats(0, 0.5)


def store_of(*layouts):
    """Return the part of a store that rows are computed from."""
    return SimpleNamespace(parts=[SimpleNamespace(layout=layout) for layout in layouts])


def listed(rows):
    return rows[np.arange(len(rows))].tolist()


@settings(max_examples=12, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=3), shares)
def test_every_row_is_trained_on_or_held_out(parts, share):
    train, held_out = hold_out_blocks(store_of(*parts), share)
    assert listed(train) == sorted(listed(train))
    assert sorted(listed(train) + listed(held_out)) == list(range(sum(part.rows for part in parts)))
    first = 0
    for number, part in enumerate(parts):
        inside = {row - first for row in listed(held_out) if first <= row < first + part.rows}
        assert (
            len(inside) == held_out.bucket_counts[number] == part.rows - train.bucket_counts[number]
        )
        assert sorted(listed(held_out.in_part(number))) == sorted(inside)
        assert set(listed(train.in_part(number))) == set(range(part.rows)) - inside
        cut = hold_out_layout(part)
        blocks = cut.blocks_of(np.array(sorted(inside), np.int64))
        assert cut.rows_of(np.unique(blocks)).sum() == len(inside), "whole blocks are held out"
        assert len(set(blocks.tolist())) == (
            min(cut.num_blocks - 1, max(1, round(cut.num_blocks * share))) if share else 0
        )
        first += part.rows


@settings(max_examples=12, deadline=None)
@given(layouts, shares)
def test_places_are_counted_before_any_row(layout, share):
    train, _ = hold_out_blocks(store_of(layout), share)
    rows = np.arange(layout.rows + 1)
    assert train.num_before(rows).tolist() == np.searchsorted(listed(train), rows).tolist()


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 2000), st.integers(1, 1000))
def test_held_out_blocks_are_spread_evenly(total, num):
    num = min(num, total - 1)
    held = held_out_blocks(total, num)
    runs = np.arange(num + 1) * total // num
    assert (held >= runs[:-1]).all() and (held < runs[1:]).all()


def test_held_out_rows_are_the_same_for_good():
    """A change of these numbers changes the held-out samples of every run whose order is
    computed.
    """
    _, held_out = hold_out_blocks(store_of(BlockLayout([300, 20], 100)), 0.05)
    assert len(held_out) == 16 and listed(held_out)[:5] == [207, 244, 85, 38, 11]
    assert held_out_blocks(10**6, 10**5)[[0, 1, 99_999]].tolist() == [5, 19, 999990]


def test_small_stores_are_cut_finely_and_large_ones_by_their_blocks():
    assert hold_out_layout(BlockLayout([100], 100)).block_rows == 1
    middle = hold_out_layout(BlockLayout([60_000], 60_000))
    assert middle.num_blocks >= FEWEST_BLOCKS and middle.block_rows >= FEWEST_ROWS
    assert hold_out_layout(BlockLayout([2000], 2000)).block_rows == FEWEST_ROWS
    large = BlockLayout([2000] * 10, 50)
    assert hold_out_layout(large) is large


def test_the_first_held_out_rows_are_a_sample_and_lie_in_few_blocks():
    layout = BlockLayout([50_000] * 40, 500)  # 4,000 blocks, 400 held out
    _, held_out = hold_out_blocks(store_of(layout), 0.1)
    first = held_out[np.arange(1000)]
    blocks = layout.blocks_of(first)
    assert WINDOW_BLOCKS - 10 < len(set(blocks.tolist())) <= WINDOW_BLOCKS + 1
    assert abs(first.mean() / layout.rows - 0.5) < 0.12
    assert len(set(held_out[np.arange(len(held_out))].tolist())) == len(held_out) == 400 * 500


def test_buckets_have_their_share_of_the_first_held_out_rows():
    parts = [BlockLayout([30_000], 100), BlockLayout([90_000], 50)]
    _, held_out = hold_out_blocks(store_of(*parts), 0.1)
    first = held_out[np.arange(1200)]
    assert abs(np.count_nonzero(first >= 30_000) - 900) < 60
    again = held_out.in_part(1)[np.arange(10)] + 30_000
    assert first[first >= 30_000][:10].tolist() == again.tolist(), (
        "a bucket alone has them in the same order"
    )
