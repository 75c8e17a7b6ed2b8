"""Queues interleaved in proportion, the schedule of buckets that is made of them, and queues in
turns.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.order import CHUNK_BATCHES
from ditlab.data.permutations import GROUP, in_turns, interleaved, ranks

lengths = st.lists(st.integers(0, 900), min_size=1, max_size=5).filter(any)


def test_every_stretch_has_its_share_of_each_queue():
    queues = interleaved([100_000, 300_000], "a")
    for start in (0, 123_456, len(queues) - 20 * GROUP):
        assert abs(np.count_nonzero(queues[start : start + 20 * GROUP]) - 15 * GROUP) < 250


def test_the_order_is_the_same_for_good():
    assert interleaved([3, 9], "a").tolist() == [0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1]
    assert interleaved([9, 5], "a", CHUNK_BATCHES).tolist() == [1] * 4 + [0] * 9 + [1]


@settings(max_examples=20, deadline=None)
@given(lengths, st.sampled_from([1, CHUNK_BATCHES]))
def test_each_queue_comes_whole_and_in_chunks(lengths, chunk):
    queues = interleaved(lengths, "a", chunk)
    assert np.bincount(queues, minlength=len(lengths)).tolist() == lengths
    whole = sum(length // chunk for length in lengths) * chunk
    assert (queues[:whole].reshape(-1, chunk) == queues[:whole:chunk, None]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_turns_are_those_of_a_loop(lengths):
    expected = [
        (queue, number)
        for number in range(10)
        for queue, length in enumerate(lengths)
        if number < length
    ]
    queues = in_turns(lengths)
    assert list(zip(queues.tolist(), ranks(queues).tolist(), strict=True)) == expected
