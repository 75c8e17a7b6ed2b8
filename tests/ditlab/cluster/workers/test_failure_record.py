"""The way of a worker's exception to the launcher's error, without processes."""

import pytest

from ditlab.cluster.attempt import GroupState, diagnose
from ditlab.cluster.worker_body import record_failure
from ditlab.engine.distributed import PeerLost
from ditlab.errors import RunFailed, StorageOutage, Unreachable, UserError
from ditlab.runs.failures import FailureKind, Recovery, failure_from_record
from ditlab.training.recovery import OutOfMemory
from support.clusters.reports import recorded
from support.trainings.workers import tiny


@pytest.mark.parametrize(
    ("error", "kind", "raised", "message"),
    [
        (
            ValueError("a bug"),
            FailureKind.CRASH,
            RunFailed,
            r"^crash: worker 1 failed: ValueError: a bug\nTraceback",
        ),
        (UserError("the knob"), FailureKind.USER_ERROR, UserError, r"^the knob$"),
        (
            RunFailed("loss is nan", kind="diverged"),
            FailureKind.DIVERGED,
            RunFailed,
            r"^diverged: loss is nan$",
        ),
        (Unreachable("no answer"), FailureKind.USER_ERROR, UserError, r"^no answer$"),
    ],
)
def test_a_failure_that_would_happen_again_ends_the_run(error, kind, raised, message):
    failure = diagnose(failure_from_record(recorded(error)["failure"]), GroupState())
    assert failure.kind is kind and failure.tags(1)["ditlab.failure"] == kind.value
    with pytest.raises(raised, match=message):
        Recovery(tiny()).after(failure, -1)


def test_a_failure_that_may_pass_is_tried_again():
    memory = failure_from_record(recorded(OutOfMemory(4, "no"))["failure"])
    assert (memory.kind, memory.step) == (FailureKind.OUT_OF_MEMORY, 4)
    assert Recovery(tiny()).after(memory, 3).memory.step == 4
    away = failure_from_record(recorded(Unreachable("no answer"), resumed=True)["failure"])
    assert away.kind is FailureKind.STORAGE_UNREACHABLE
    assert Recovery(tiny()).after(away, 3).failures == 1
    data = failure_from_record(recorded(StorageOutage("no data"))["failure"])
    assert data.kind is FailureKind.STORAGE_UNREACHABLE, (
        "streamed data answered before, resumed or not"
    )


def test_a_lost_peer_is_recorded_apart_and_the_first_failure_stays():
    channel = recorded(PeerLost("worker 0 is gone. Check the network."))
    assert channel == {"peer_loss": "worker 1: worker 0 is gone"}
    record_failure(ValueError("first"), 1, False, channel)
    record_failure(UserError("second"), 0, False, channel)
    assert channel["failure"]["kind"] == "crash"


def test_no_failure_without_a_record():
    assert failure_from_record(None) is None
