from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.stores.view import View
from support.datasets.bucketed import bucketed


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """40 rows of 8x8, 9 of 16x4 and 23 of 8x12, mixed."""
    store = bucketed(tmp_path_factory.mktemp("bucketed") / "s")
    return View(store, np.random.default_rng(0).permutation(72), "test")


@given(st.integers(1, 80), st.none() | st.integers(0, 80))
def test_batches_are_the_first_rows_by_bucket(view, size, limit):
    pieces = list(view.batches(size, limit))
    assert (
        sorted(place for piece in pieces for place in piece.indices)
        == list(range(len(view)))[:limit]
    )
    for piece in pieces:
        places = np.flatnonzero(view.buckets == piece.bucket)
        assert np.array_equal(places[piece.first : piece.first + len(piece.indices)], piece.indices)
    fewest = [-(-(view.buckets[:limit] == bucket).sum() // size) for bucket in range(3)]
    assert len(pieces) == sum(fewest)


def test_rows_of_several_buckets_are_padded_with_zeros(view):
    indices = np.arange(72)[::-1]
    words = view.padded("words", indices)
    assert words.shape == (72, 12) and words.dtype == torch.float16
    for index, row in zip(indices, words, strict=True):
        own = view.gather("words", np.array([index]))[0]
        assert torch.equal(row[: len(own)], own) and not row[len(own) :].any()
    one = np.flatnonzero(view.buckets == 1)
    assert torch.equal(view.padded("image", one), view.gather("image", one)), (
        "one bucket needs no padding"
    )
    assert len(view.padded("words", one[:0])) == 0


def test_the_fullest_bucket(view, make_store):
    fullest = view.fullest()
    assert np.array_equal(fullest.rows, view.rows[view.buckets == 0])
    plain = View(make_store(), np.arange(50), "test")
    assert np.array_equal(plain.fullest().rows, plain.rows)
    assert len(View(view.store, np.arange(0), "test").fullest()) == 0


@pytest.mark.parametrize("number", [0, 1])
def test_computed_rows_are_viewed_as_listed_ones_are(view, number):
    """Training and held-out rows of a store of 40, 9 and 23 rows."""
    computed = View(view.store, hold_out_blocks(view.store, 0.3)[number], "test")
    listed = View(view.store, computed.rows[np.arange(len(computed))], "test")
    assert computed.bucket_counts.tolist() == listed.bucket_counts.tolist()
    assert np.array_equal(computed.buckets, listed.buckets)
    for limit in (None, 7, 1000):
        for one, other in zip(computed.batches(4, limit), listed.batches(4, limit), strict=True):
            assert np.array_equal(one.indices, other.indices)
            assert (one.bucket, one.first) == (other.bucket, other.first)
    assert np.array_equal(computed.first(5).rows, listed.rows[:5])
    assert len(computed.first(None)) == len(computed.first(1000)) == len(listed)
    indices = np.arange(len(computed))[::-2]
    assert torch.equal(computed.padded("words", indices), listed.padded("words", indices))
    for part in range(3):
        one, other = computed.in_part(part), listed.in_part(part)
        assert one.store is other.store is view.store.parts[part]
        assert sorted(one.rows[np.arange(len(one))]) == sorted(other.rows)
    assert len(computed.fullest()) == computed.bucket_counts.max() == len(listed.fullest())


def test_keys_of_other_rows_differ(view):
    shares = [hold_out_blocks(view.store, share) for share in (0.1, 0.3)]
    views = [View(view.store, rows, "test") for pair in shares for rows in pair]
    views += [replace(view, rows=each.rows[np.arange(len(each))]) for each in views]
    assert len({each.rows_key for each in views}) == 8
    assert replace(views[0], origin="other").rows_key == views[0].rows_key
