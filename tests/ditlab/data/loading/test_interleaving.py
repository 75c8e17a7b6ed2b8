"""Queues interleaved in proportion, the schedule of buckets that is made of them, and queues in turns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.order import CHUNK_BATCHES
from ditlab.data.permutations import GROUP, Interleaving, RoundRobin

lengths = st.lists(st.integers(0, 900), min_size=1, max_size=5).filter(any)


@settings(max_examples=12, deadline=None)
@given(lengths, st.text(max_size=3))
def test_each_queue_comes_whole_and_in_its_order(lengths, text):
    sequence = Interleaving(lengths, text)
    queues, numbers = sequence.locate(np.arange(sequence.total))
    for queue, length in enumerate(lengths):
        assert numbers[queues == queue].tolist() == list(range(length))
    for place in {0, 1, sequence.total // 2, sequence.total - 1, sequence.total}:
        assert sequence.num_before(place).tolist() == np.bincount(queues[:place], minlength=len(lengths)).tolist()


def test_every_stretch_has_its_share_of_each_queue():
    """Also in a sequence that nobody could list."""
    sequence = Interleaving([10**11, 3 * 10**11], "a")
    for start in (0, 12_345_678_901, sequence.total - 20 * GROUP):
        queues, _ = sequence.locate(start + np.arange(20 * GROUP))
        assert abs(np.count_nonzero(queues) - 15 * GROUP) < 250  # a group of 4e11 has thousands, at random
        taken = sequence.num_before(start + 20 * GROUP) - sequence.num_before(start)
        assert taken.tolist() == np.bincount(queues).tolist()


@settings(max_examples=12, deadline=None)
@given(lengths)
def test_schedule_has_each_bucket_in_its_order_and_in_chunks(batches):
    schedule = Interleaving(batches, "a", CHUNK_BATCHES)
    total = sum(batches)
    buckets, numbers = schedule.locate(np.arange(total))
    for bucket, length in enumerate(batches):
        assert numbers[buckets == bucket].tolist() == list(range(length))
    whole = sum(length // CHUNK_BATCHES for length in batches) * CHUNK_BATCHES
    assert (buckets[:whole].reshape(-1, CHUNK_BATCHES) == buckets[:whole:CHUNK_BATCHES, None]).all()
    for batch in {0, 3, whole // 2, whole, (whole + total) // 2, total}:
        if batch <= total:
            counted = np.bincount(buckets[:batch], minlength=len(batches)).tolist()
            assert schedule.num_before(batch).tolist() == counted


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_turns_are_those_of_a_loop(lengths):
    expected = [(queue, number) for number in range(10) for queue, length in enumerate(lengths) if number < length]
    queues, numbers = RoundRobin(np.array(lengths)).locate(np.arange(sum(lengths)))
    assert list(zip(queues.tolist(), numbers.tolist(), strict=True)) == expected
