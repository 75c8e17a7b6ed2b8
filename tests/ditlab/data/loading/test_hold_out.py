"""Held-out rows: the same whatever the experiment, and a larger share contains a smaller one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.held_out import hold_out_evenly, hold_out_rows, hold_out_runs

lengths = st.lists(st.integers(1, 60), min_size=2, max_size=6)
shares = st.floats(0, 0.5)


def check_split(train, held_out, total, num_held_out):
    """Compare a split with what every split is: all rows once, those that train in their order."""
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(total))
    assert np.array_equal(train, np.sort(train))
    assert len(held_out) == num_held_out


def num_of(total, share):
    """Return the number that a share holds out: one at least, and none of no share."""
    return max(1, round(total * share)) if share else 0


@given(lengths, shares)
def test_every_bucket_gives_its_share(lengths, share):
    train, held_out = hold_out_evenly(lengths, share)
    total, bucket = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    check_split(train, held_out, total, num_of(total, share))
    for some in (len(held_out), len(held_out) // 2):  # the first few are as good a sample as all
        taken = np.bincount(bucket[held_out[:some]], minlength=len(lengths))
        # each is rounded by up to a half, which the others make up for according to their lengths
        bound = 1 + np.array(lengths) * len(lengths) / 2 / total
        assert np.all(np.abs(taken - np.array(lengths) * some / total) <= bound)


@settings(deadline=None)
@given(lengths, shares, shares)
def test_a_larger_share_of_buckets_contains_a_smaller_one(lengths, one, other):
    few, many = sorted(
        (hold_out_evenly(lengths, share)[1].tolist() for share in (one, other)), key=len
    )
    assert many[: len(few)] == few


def test_held_out_rows_of_old_runs_are_unchanged():
    """A change of these numbers lets new runs train on rows that old ones were evaluated on."""
    assert hold_out_rows(1797, 0.1)[1][:5].tolist() == [348, 400, 915, 1231, 1114]
    assert hold_out_evenly([100, 50, 10], 0.05)[1].tolist() == [25, 132, 2, 1, 122, 52, 82, 109]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5])
def test_groups_are_held_out_whole(share):
    train, held_out = hold_out_rows(70, share, 7)
    check_split(train, held_out, 70, 7 * num_of(10, share))
    assert not set(held_out // 7) & set(train // 7)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5])
def test_every_row_trains_or_is_held_out(share):
    for split, lengths in (
        (hold_out_rows, (1, 10, 1797)),
        (hold_out_runs, (1, 10, 40, 1797, 50_000)),
    ):
        for length in lengths:
            check_split(*split(length, share), length, num_of(length, share))


def test_a_larger_share_contains_a_smaller_one():
    for group in (1, 5):
        few, many = (hold_out_rows(1000, share, group)[1] for share in (0.1, 0.3))
        assert set(few) < set(many)
    assert set(hold_out_runs(5000, 0.1)[1]) < set(hold_out_runs(5000, 0.3)[1])


@pytest.mark.parametrize("length", [100, 5000, 100_000])
def test_held_out_rows_have_few_neighbours_that_train(length):
    _, held_out = hold_out_runs(length, 0.1)
    held = np.zeros(length + 2, bool)
    held[held_out + 1] = True
    beside = ~held[:-2] | ~held[2:]
    assert beside[held_out].mean() <= 0.2, "of rows at random it would be 0.99"
    places = int((np.diff(held.astype(int)) == 1).sum())
    assert 1 <= places <= 100
    if length > 1000:
        assert places > 20, "spread over the corpus"


def test_held_out_rows_of_a_text_are_shuffled():
    """A limited evaluation takes the first few, which come from many places."""
    first = np.sort(hold_out_runs(50_000, 0.1)[1][:50])
    assert (np.diff(first) > 40).sum() > 30
