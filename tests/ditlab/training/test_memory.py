"""The ladder: empty the caches, halve, halve, leave the batch out, give up."""

import pytest
import torch

from ditlab.errors import RunFailed
from ditlab.training.memory import Room, is_out_of_memory
from support.workers import tiny


def test_the_rungs_in_order():
    experiment, room, rungs = tiny(), Room(), []
    for _ in range(4):
        room = room.after(7, experiment)
        rungs.append((room.halvings, room.left_out))
    assert rungs == [(0, ()), (1, ()), (2, ()), (2, (7,))]


def test_another_step_begins_below_and_keeps_the_size():
    room = Room().after(3, tiny()).after(3, tiny()).after(9, tiny())
    assert (room.halvings, room.tries, room.left_out) == (1, 1, ())


def test_an_odd_micro_batch_is_left_out_instead():
    odd = tiny(batch={"size": 9, "micro": 3})
    room = Room().after(4, odd).after(4, odd)
    assert (room.halvings, room.left_out) == (0, (4,))


def test_what_never_fits_fails_with_a_remedy():
    room = Room()
    with pytest.raises(RunFailed, match=r"out of memory at step 1, with micro-batches of 4 too: lower batch.micro"):
        for _ in range(5):
            room = room.after(0, tiny())
    with pytest.raises(RunFailed, match="out of memory at step 14"):
        for step in range(10, 20):
            while step not in room.left_out:
                room = room.after(step, tiny())


def test_memory_errors_are_told_from_others():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
