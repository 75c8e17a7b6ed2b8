"""What follows from which failure, with failures made by hand."""

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError

from ditlab.cluster.workers.attempt import classify
from ditlab.cluster.workers.heartbeat import Sign, Watchman
from ditlab.errors import RunFailed, UserError
from ditlab.runs.failures import Failure, Kind, Recovery
from support.workers import tiny


def sign(rank, beats=5, idle=0.0, written=1.0, node="a"):
    return Sign(rank, 1000 + rank, node, written, step=3, doing="training", laps=7, beats=beats, idle=idle)


def death(preempted=False):
    error = ActorDiedError()
    error._preempted = preempted
    return error


LOST = Failure(Kind.LOST_WORKER, "worker 1 died")


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.DIVERGED, Kind.STORAGE])
def test_what_would_happen_again_is_not_retried(kind):
    with pytest.raises(RunFailed, match="why") as caught:
        Recovery(tiny()).after(Failure(kind, "why"), saved_step=3)
    assert caught.value.kind == kind.value


def test_a_user_error_keeps_its_words():
    with pytest.raises(UserError, match=r"^the knob$"):
        Recovery(tiny()).after(Failure(Kind.USER_ERROR, "the knob"), 0)


def test_losses_in_a_row_are_bounded_and_a_checkpoint_starts_the_count_anew():
    recovery = Recovery(tiny(resources__max_failures=2))
    recovery = recovery.after(LOST, 10).after(LOST, 10)
    recovery = recovery.after(LOST, 20)  # two in a row, then progress
    assert recovery.failures == 1
    recovery = recovery.after(LOST, 20)
    with pytest.raises(RunFailed, match=r"lost worker: worker 1 died \(3 in a row .* resources.max_failures=2\)"):
        recovery.after(LOST, 20)


def test_preemptions_count_for_nothing():
    recovery = Recovery(tiny(resources__max_failures=0))
    for _ in range(50):
        recovery = recovery.after(Failure(Kind.PREEMPTED, "spot"), 10)
    assert recovery.failures == 0
    with pytest.raises(RunFailed, match="lost worker"):
        recovery.after(LOST, 10)


def test_memory_goes_down_the_ladder():
    recovery = Recovery(tiny())
    for _ in range(2):
        recovery = recovery.after(Failure(Kind.OUT_OF_MEMORY, "no", step=4), 3)
    assert recovery.room.halvings == 1
    assert "micro-batches of 8" in recovery.sentence(Failure(Kind.OUT_OF_MEMORY, "no", step=4))


def test_who_died_is_told_from_who_crashed_because_of_it():
    crash = Failure(Kind.CRASH, "worker 0 failed: gloo")
    error = WorkerGroupError("lost", {1: death(), 0: RuntimeError("gloo")})
    found = classify(crash, error, [sign(0), sign(1)], [], {"a"})
    assert found.kind is Kind.LOST_WORKER and "worker 1 (process 1001, at step 3)" in found.message
    assert classify(crash, WorkerGroupError("bug", {0: ValueError()}), [sign(0)], [], {"a"}) is crash


def test_a_lost_node_and_a_notice_that_came_too_late_have_their_own_names():
    signs = [sign(0), sign(1, node="b")]
    error = WorkerGroupError("lost", {1: death()})
    assert classify(None, error, signs, [], {"a"}).kind is Kind.LOST_NODE
    assert classify(None, WorkerGroupError("", {1: death(preempted=True)}), signs, [], {"a"}).kind is Kind.PREEMPTED
    assert classify(None, error, signs, [sign(1)], {"a", "b"}).kind is Kind.HUNG_WORKER


@pytest.mark.parametrize(("is_node_lost", "kind"), [(False, Kind.LOST_WORKER), (True, Kind.LOST_NODE)])
def test_workers_that_died_before_they_could_say_where_they_are(is_node_lost, kind):
    error = ControllerError(WorkerGroupStartupFailedError("gone"))
    assert classify(None, error, [], [], {"a"}, "", is_node_lost).kind is kind


def test_silence_is_found_and_those_who_wait_are_not_blamed():
    watchman = Watchman(timeout=10)
    assert watchman.hung([sign(0), sign(1)], now=0) == []
    assert watchman.hung([sign(0, written=2.0), sign(1)], now=9) == []
    assert [one.rank for one in watchman.hung([sign(0, written=3.0), sign(1)], now=11)] == [1]


def test_the_one_that_is_behind_is_blamed():
    watchman = Watchman(timeout=10)
    waiting = [sign(0, beats=12, idle=11), sign(1, beats=11, idle=13), sign(2, beats=12, idle=11)]
    assert [one.rank for one in watchman.hung(waiting, now=0)] == [1]
    working = [sign(0, beats=12, idle=11), sign(1, beats=13, idle=2)]
    assert watchman.hung(working, now=1) == []
