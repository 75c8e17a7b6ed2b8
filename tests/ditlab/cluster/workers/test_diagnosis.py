"""Diagnosis of worker groups that ended without an outcome, with errors and heartbeats made by
hand.
"""

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
)

from ditlab.cluster.attempt import GroupState, diagnose
from ditlab.runs.failures import Failure, FailureKind
from support.clusters.reports import heartbeat


def death(preempted=False):
    error = ActorDiedError()
    error._preempted = preempted
    return error


def test_a_dead_worker_is_named_and_not_the_one_that_crashed_because_of_it():
    crash = Failure(FailureKind.CRASH, "worker 0 failed: gloo")
    error = WorkerGroupError("lost", {1: death(), 0: RuntimeError("gloo")})
    found = diagnose(crash, GroupState(error, [heartbeat(0), heartbeat(1)], alive={"a"}))
    assert (
        found.kind is FailureKind.LOST_WORKER
        and "worker 1 (process 1001, at step 3)" in found.message
    )
    bug = GroupState(WorkerGroupError("bug", {0: ValueError()}), [heartbeat(0)], alive={"a"})
    assert diagnose(crash, bug) is crash


def test_a_lost_node_and_a_preemption_without_notice_have_their_own_kinds():
    heartbeats = [heartbeat(0), heartbeat(1, node="b")]
    error = WorkerGroupError("lost", {1: death()})
    assert diagnose(None, GroupState(error, heartbeats, alive={"a"})).kind is FailureKind.LOST_NODE
    taken = WorkerGroupError("", {1: death(preempted=True)})
    assert diagnose(None, GroupState(taken, heartbeats, alive={"a"})).kind is FailureKind.PREEMPTED
    hung = GroupState(error, heartbeats, [heartbeat(1)], {"a", "b"})
    assert diagnose(None, hung).kind is FailureKind.HUNG_WORKER


def test_a_recorded_failure_counts_more_than_a_hang_without_a_death():
    """The other workers wait for the one that failed."""
    full = Failure(FailureKind.OUT_OF_MEMORY, "no", step=3)
    assert diagnose(full, GroupState(None, [heartbeat(0)], [heartbeat(0)], {"a"})) is full


@pytest.mark.parametrize(
    ("is_node_lost", "kind"), [(False, FailureKind.LOST_WORKER), (True, FailureKind.LOST_NODE)]
)
def test_workers_that_died_before_their_first_heartbeat(is_node_lost, kind):
    error = ControllerError(WorkerGroupStartupFailedError("gone"))
    assert diagnose(None, GroupState(error, alive={"a"}, is_node_lost=is_node_lost)).kind is kind


def test_a_cluster_without_resources_and_a_leader_that_died():
    waiting = ControllerError(WorkerGroupStartupTimeoutError("no placement"))
    assert diagnose(None, GroupState(waiting)).kind is FailureKind.NO_RESOURCES
    led = diagnose(None, GroupState(ControllerError(death())))
    assert led == Failure(FailureKind.LOST_WORKER, "the process that leads the workers died")


def test_workers_that_lost_touch_with_each_other():
    state = GroupState(
        None, [heartbeat(0)], alive={"a"}, peer_loss="worker 0: Connection closed by peer"
    )
    assert diagnose(None, state).message == (
        "a worker lost touch with the others (worker 0: Connection closed by peer)"
    )
    away = GroupState(None, [heartbeat(0, node="b")], alive={"a"}, peer_loss="worker 1: timed out")
    assert diagnose(None, away).kind is FailureKind.LOST_NODE
    assert diagnose(None, GroupState(None)).kind is FailureKind.CRASH
