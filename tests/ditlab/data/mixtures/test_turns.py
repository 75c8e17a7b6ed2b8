"""Round robin: one entry of each queue after the other, until they run out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.permutations import RoundRobin


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_turns_are_those_of_a_loop(lengths):
    expected = [(queue, number) for number in range(10) for queue, length in enumerate(lengths) if number < length]
    turns = RoundRobin(np.array(lengths))
    queues, numbers = turns.locate(np.arange(sum(lengths)))
    assert list(zip(queues.tolist(), numbers.tolist(), strict=True)) == expected
