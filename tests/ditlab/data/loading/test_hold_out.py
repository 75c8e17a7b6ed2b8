import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditlab.data.loading.hold_out import hold_out_evenly, hold_out_groups

lengths = st.lists(st.integers(1, 60), min_size=2, max_size=6)
shares = st.floats(0, 0.5)


@given(lengths, shares)
def test_each_bucket_gives_its_share(lengths, share):
    train, held_out = hold_out_evenly(lengths, share)
    total, bucket = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(total))
    assert np.array_equal(train, np.sort(train))
    assert len(held_out) == (max(1, round(total * share)) if share else 0)
    for some in (len(held_out), len(held_out) // 2):  # the first few are as good a sample as all
        taken = np.bincount(bucket[held_out[:some]], minlength=len(lengths))
        # each is rounded by up to a half, which the others make up for according to their lengths
        bound = 1 + np.array(lengths) * len(lengths) / 2 / total
        assert np.all(np.abs(taken - np.array(lengths) * some / total) <= bound)


@given(lengths, shares, shares)
def test_a_larger_share_holds_out_what_a_smaller_one_does(lengths, one, other):
    few, many = sorted((hold_out_evenly(lengths, share)[1].tolist() for share in (one, other)), key=len)
    assert many[: len(few)] == few


def test_the_held_out_rows_of_old_runs_stay():
    """A change of these numbers lets new runs train on what old ones were evaluated on."""
    assert hold_out_evenly([100, 50, 10], 0.05)[1].tolist() == [25, 132, 2, 1, 122, 52, 82, 109]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5])
def test_groups_are_held_out_whole(share):
    train, held_out = hold_out_groups(70, share, 7)
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(70))
    groups = set(held_out // 7)
    assert len(held_out) == 7 * len(groups) == 7 * (max(1, round(10 * share)) if share else 0)
    assert not groups & set(train // 7)
