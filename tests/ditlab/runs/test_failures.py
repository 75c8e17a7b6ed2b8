"""Retries: what follows from which failure."""

import pytest

from ditlab.errors import RunFailed
from ditlab.runs.failures import Failure, FailureKind, Recovery
from support.damage import refused
from support.trainings.workers import tiny

LOST = Failure(FailureKind.LOST_WORKER, "worker 1 died")


def test_a_failed_storage_is_not_tried_again():
    with pytest.raises(RunFailed, match="why") as caught:
        Recovery(tiny()).after(Failure(FailureKind.STORAGE, "why"), saved_step=3)
    assert caught.value.kind == "storage"


def test_losses_in_a_row_are_limited_and_a_checkpoint_resets_the_count():
    recovery = Recovery(tiny(resources__max_failures=2))
    recovery = recovery.after(LOST, 10).after(LOST, 10)
    recovery = recovery.after(LOST, 20)  # two in a row, then progress
    assert recovery.failures == 1
    recovery = recovery.after(LOST, 20)
    sentence = r"lost worker: worker 1 died \(3 in a row .* resources.max_failures=2\)"
    with refused(sentence, RunFailed):
        recovery.after(LOST, 20)


def test_preemptions_are_not_counted():
    recovery = Recovery(tiny(resources__max_failures=0))
    for _ in range(50):
        recovery = recovery.after(Failure(FailureKind.PREEMPTED, "spot"), 10)
    assert recovery.failures == 0
    with refused("lost worker", RunFailed):
        recovery.after(LOST, 10)


@pytest.mark.parametrize("step", [0, 4])
def test_out_of_memory_leads_to_smaller_micro_batches(step):
    recovery, failure = Recovery(tiny()), Failure(FailureKind.OUT_OF_MEMORY, "no", step=step)
    for _ in range(2):
        recovery = recovery.after(failure, 3)
    assert recovery.memory.microbatch_splits == 1
    assert "micro-batches of 8" in recovery.message_for(failure)
