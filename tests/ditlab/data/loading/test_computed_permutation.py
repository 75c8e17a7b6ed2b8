"""Permutations computed place by place: bijective, uniform, the same for good."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.permutations import key_of, mix, permuted

keys = st.integers(0, 2**64 - 1)


@settings(max_examples=12, deadline=None)
@given(keys, st.integers(1, 3000))
def test_every_place_is_taken_once(key, length):
    order = permuted(np.arange(length), length, key)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(length))


@settings(max_examples=12, deadline=None)
@given(keys, st.lists(st.integers(1, 10**12), min_size=1, max_size=5), st.integers(0, 10**12))
def test_permutations_of_many_lengths_and_keys_at_once_are_those_of_each(key, lengths, place):
    all_lengths, all_keys = (
        np.array(lengths),
        mix(np.arange(len(lengths), dtype=np.uint64) + np.uint64(key)),
    )
    places = place % all_lengths
    together = permuted(places, all_lengths, all_keys)
    for number, length in enumerate(lengths):
        alone = permuted(places[number : number + 1], length, int(all_keys[number]))
        assert together[number] == alone[0] < length


def test_permutation_is_the_same_for_good():
    """A change of these numbers changes the next samples of every resumed run whose order is
    computed.
    """
    assert permuted(np.arange(10), 10, key_of("a")).tolist() == [8, 5, 6, 2, 0, 4, 7, 1, 9, 3]
    assert permuted(np.array([0, 1, 10**12]), 2 * 10**12, 5).tolist() == [
        1402716607535,
        1894172016242,
        1140157739979,
    ]
    assert permuted(np.arange(4), 60_000, key_of("b")).tolist() == [7178, 51785, 46306, 34555]


@pytest.mark.parametrize("length", [3, 5, 31, 32, 100])
def test_two_places_are_uniform_over_keys(length):
    """The first and the last place take each pair equally often (chi-squared, within five standard
    deviations).
    """
    many = mix(np.arange(1, 20_001, dtype=np.uint64))[:, None]
    found = permuted(np.broadcast_to(np.array([0, length - 1]), (len(many), 2)), length, many)
    table = np.bincount(found[:, 0] * length + found[:, 1], minlength=length**2).reshape(
        length, length
    )
    counts = table[~np.eye(length, dtype=bool)]
    expected, freedom = len(many) / len(counts), len(counts) - 1
    assert table.trace() == 0
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_are_not_neighbours_afterwards():
    order = permuted(np.arange(10**5), 10**5, 3)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(10**5))[0, 1]) < 0.02
