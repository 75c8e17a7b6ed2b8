"""The ladder: empty the caches, halve, halve, leave the batch out, give up."""

import pytest

from ditlab.errors import RunFailed
from ditlab.training.recovery import MemoryPlan
from support.trainings.workers import tiny


def test_the_rungs_in_order():
    experiment, memory, rungs = tiny(), MemoryPlan(), []
    for _ in range(4):
        memory = memory.next_attempt(7, experiment)
        rungs.append((memory.microbatch_splits, memory.skipped_steps))
    assert rungs == [(0, ()), (1, ()), (2, ()), (2, (7,))]


def test_another_step_begins_below_and_keeps_the_size():
    memory = MemoryPlan().next_attempt(3, tiny()).next_attempt(3, tiny()).next_attempt(9, tiny())
    assert (memory.microbatch_splits, memory.attempts, memory.skipped_steps) == (1, 1, ())


def test_an_odd_micro_batch_is_left_out_instead():
    odd = tiny(batch__size=9, batch__micro=3)
    memory = MemoryPlan().next_attempt(4, odd).next_attempt(4, odd)
    assert (memory.microbatch_splits, memory.skipped_steps) == (0, (4,))


def test_what_never_fits_fails_with_a_remedy():
    memory = MemoryPlan()
    with pytest.raises(
        RunFailed, match=r"out of memory at step 1, with micro-batches of 4 too: lower batch.micro"
    ):
        for _ in range(5):
            memory = memory.next_attempt(0, tiny())
    with pytest.raises(RunFailed, match="out of memory at step 14"):
        for step in range(10, 20):
            while step not in memory.skipped_steps:
                memory = memory.next_attempt(step, tiny())
