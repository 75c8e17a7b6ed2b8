"""Every exception of Ray has its class of failure, and Ray's words about a node's memory are read,
without Ray.
"""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import exceptions
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from ditlab.cluster import attempt
from ditlab.cluster.attempt import GroupState, diagnose
from ditlab.cluster.channel import Heartbeat
from ditlab.cluster.launch import train_with_retries
from ditlab.cluster.ray_failures import ray_failure
from ditlab.errors import RunFailed
from ditlab.runs.failures import FailureKind, Recovery, failure_from_record
from support.clusters import nodes
from support.clusters.reports import heartbeat, recorded
from support.damage import refused
from support.trainings.workers import tiny

SHORTAGE = Path(nodes.__file__).with_name("node_memory.txt").read_text()
"""What Ray 2.60 raised as an OutOfMemoryError when it ended a worker at a threshold of 10 %."""
NODE = "f549fd6061e69dc2cea7b95636d90e5c8d13cd4148060d07dc8c1a4e"
OTHERS = {
    "RayTaskError": FailureKind.CRASH,
    "CrossLanguageError": FailureKind.CRASH,
    "UserCodeException": FailureKind.CRASH,
    "UnserializableException": FailureKind.CRASH,
    "RuntimeEnvSetupError": FailureKind.CANNOT_START,
    "ActorUnschedulableError": FailureKind.CANNOT_START,
    "TaskUnschedulableError": FailureKind.CANNOT_START,
    "AuthenticationError": FailureKind.CANNOT_START,
    "OutOfMemoryError": FailureKind.NODE_OUT_OF_MEMORY,
    "NodeDiedError": FailureKind.LOST_NODE,
    "LocalRayletDiedError": FailureKind.LOST_NODE,
}
"""Classes of Ray that are no lost worker."""
CLASSES = sorted(
    (
        each
        for _, each in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(each, exceptions.RayError)
    ),
    key=lambda each: each.__name__,
)
"""All of the module, those of a Ray to come included."""


def made(kind):
    """An exception of a class whose constructor asks for things of a cluster."""
    whole = type(
        kind.__name__, (kind,), {"__init__": lambda self: None, "__str__": lambda self: "words"}
    )
    error = whole()
    error.__dict__.update(cause=None, _preempted=False)
    return error


def test_every_name_of_the_table_is_one_of_rays():
    assert {each.__name__ for each in CLASSES} >= set(OTHERS)
    assert len(CLASSES) > 30


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_an_exception_of_ray_is_the_same_failure_wherever_it_comes_from(kind):
    expected = OTHERS.get(kind.__name__, FailureKind.LOST_WORKER)
    places = {
        "led": ControllerError(made(kind)),
        "health": WorkerGroupError("", {0: WorkerHealthCheckFailedError("", made(kind))}),
        "worker": WorkerGroupError("", {0: made(kind)}),
        "fit": made(kind),
    }
    for place, error in places.items():
        found = diagnose(None, GroupState(error, [heartbeat(0)], alive={"a"}))
        assert found.kind is expected, (place, found)
        assert found.message
    assert failure_from_record(recorded(made(kind))["failure"]).kind is expected
    if expected is FailureKind.CANNOT_START:
        with refused("; ", RunFailed):
            Recovery(tiny()).after(found, -1)
    elif expected is not FailureKind.CRASH:
        assert Recovery(tiny()).after(found, -1).failures == 1
        with refused(r"resources\.max_failures=1", RunFailed):
            Recovery(tiny(resources__max_failures=1)).after(found, -1).after(found, -1)


@pytest.mark.parametrize(
    "cause", [exceptions.ObjectLostError, exceptions.LocalRayletDiedError, exceptions.RpcError]
)
def test_what_a_task_wraps_decides(cause):
    task = made(exceptions.RayTaskError)
    task.cause = made(cause)
    assert ray_failure(task).kind is OTHERS.get(cause.__name__, FailureKind.LOST_WORKER)
    for bug in (ValueError("a bug"), exceptions.RayError("ValueError isn't serializable")):
        task.cause = bug
        assert ray_failure(task) is None
        group = WorkerGroupError("", {0: WorkerHealthCheckFailedError("", task)})
        assert diagnose(None, GroupState(group)).kind is FailureKind.CRASH
        assert diagnose(None, GroupState(ControllerError(task))).kind is FailureKind.CRASH


def worker(rank, pid, node=NODE):
    return Heartbeat(rank, pid, node, 1.0, 3, "training", 7, 5, 0.0)


def test_words_of_another_ray_are_a_node_without_memory_all_the_same():
    for text in (
        "",
        "Task was killed due to the node running low on memory.",
        SHORTAGE.partition("Top 10")[0],
    ):
        failure = ray_failure(exceptions.OutOfMemoryError(text), [worker(0, 20094)])
        assert failure.kind is FailureKind.NODE_OUT_OF_MEMORY and not failure.is_own
        assert (
            failure.message.startswith("a node's memory is nearly used up")
            and "uses the most" not in failure.message
        )
    died = made(exceptions.ActorDiedError)
    assert (
        ray_failure(type("Died", (type(died),), {"__str__": lambda self: SHORTAGE})()).kind
        is failure.kind
    )


def test_a_node_that_others_fill_counts_as_a_lost_worker_and_names_them():
    for workers in ([], [worker(0, 21992)], [worker(0, 20094, "another node")]):
        group = GroupState(exceptions.OutOfMemoryError(SHORTAGE), workers, alive={NODE})
        failure = diagnose(None, group)
        assert failure.kind is FailureKind.NODE_OUT_OF_MEMORY and not failure.is_own
        assert failure.message.startswith(
            "a node's memory is nearly used up; process 20094 uses the most, 1.22 GiB: python "
            "-m pytest "
        )
        assert failure.message.endswith(
            "; end other work there, or raise RAY_memory_usage_threshold where Ray is started"
        )
        recovery = Recovery(tiny()).after(failure, 5)
        assert (recovery.failures, recovery.memory.microbatch_splits) == (1, 0)
        assert "going on from step 5 (1 of 3)." in recovery.message_for(failure)


def test_a_node_that_the_run_itself_fills_halves_the_micro_batch_once():
    """0.46 and 0.41 GiB are less than another's 1.22; with it they are the most."""
    error = WorkerGroupError(
        "", {1: WorkerHealthCheckFailedError("", exceptions.OutOfMemoryError(SHORTAGE))}
    )
    failure = diagnose(None, GroupState(error, [worker(0, 20094), worker(1, 21989)], alive={NODE}))
    assert (
        failure.is_own
        and "this run's workers use the most, 1.63 GiB; lower batch.micro" in failure.message
    )
    first = Recovery(tiny()).after(failure, 5)
    assert (first.failures, first.memory.microbatch_splits) == (0, 1)
    assert first.message_for(failure).endswith(
        "going on from step 5 with micro-batches of 8, the batch stays the same."
    )
    again = diagnose(None, GroupState(error, [worker(0, 20094), worker(1, 21989)], alive={NODE}))
    second = first.after(again, 5)
    assert (second.failures, second.memory.microbatch_splits) == (1, 1)
    assert second.message_for(again).endswith("going on from step 5 (1 of 3).")
    odd = Recovery(tiny(batch__size=15, batch__micro=15)).after(failure, 5)
    assert (odd.failures, odd.memory.microbatch_splits) == (1, 0), (
        "micro-batches of 15 have no half"
    )


def test_a_launcher_or_a_sweeps_trial_that_loses_ray_itself_counts_and_names_it(monkeypatch):
    """Both train by `train_with_retries`; nothing of Ray answers here."""

    class Lost:
        def assign(self, *_, **__):
            raise exceptions.RpcError("failed to connect to all addresses")

    monkeypatch.setattr(attempt, "alive_ids", lambda: {"a"})
    monkeypatch.setattr(
        attempt.KeyValueChannel,
        "clear",
        lambda _: (_ for _ in ()).throw(exceptions.RpcError("gone")),
    )
    store, warned = SimpleNamespace(last_step=lambda: -1), []
    launch = SimpleNamespace(
        experiment=tiny(resources__max_failures=1),
        run_id="r",
        tags={},
        checkpoints=lambda: store,
        changed=lambda **_: launch,
    )
    pool = SimpleNamespace(idle_group=lambda _: Lost(), keep=False)
    spec = SimpleNamespace(share=SimpleNamespace(threads=1))
    callbacks = SimpleNamespace(on_failure=lambda _: None, warn=warned.append)
    with refused(
        r"lost worker: RpcError: failed to connect .*resources\.max_failures=1", RunFailed
    ):
        train_with_retries(launch, pool, spec, SimpleNamespace(count=0), callbacks)
    assert warned == [
        (
            "lost worker: RpcError: failed to connect to all addresses; going on from the "
            "beginning (1 of 1)."
        )
    ]
