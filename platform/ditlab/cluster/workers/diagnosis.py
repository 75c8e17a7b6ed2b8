"""Diagnosis of a worker group that ended without an outcome: pure decisions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ray.exceptions import RayActorError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckTimeoutError,
)

from ditlab.cluster.workers.heartbeat import Heartbeat
from ditlab.runs.failures import Failure, FailureKind


@dataclass(frozen=True)
class GroupState:
    """State of a worker group after its end."""

    error: BaseException | None = None
    """Exception that Ray Train raised."""
    heartbeats: Sequence[Heartbeat] = ()
    """Last heartbeat of each worker."""
    hung: Sequence[Heartbeat] = ()
    """Workers that were killed because they hung."""
    alive: Collection[str] = frozenset()
    """Ray's ids of the nodes that answer."""
    peer_loss: str = ""
    """Sentence of a worker that lost touch with another one; empty for none."""
    is_node_lost: bool = False
    """True if a node of the cluster is gone: for workers that had no time for a heartbeat."""


def diagnose(recorded: Failure | None, state: GroupState) -> Failure:
    """The failure that ended a group.

    A worker that crashed while another one died did so because of it.

    Args:
        recorded: failure that a worker recorded of itself.
        state: what Ray and the heartbeats show.
    """
    failures = state.error.worker_failures if isinstance(state.error, WorkerGroupError) else {}
    dead = {rank: death for rank, one in failures.items() if (death := _death(one))}
    if state.hung and (dead or not recorded):
        return Failure(FailureKind.HUNG_WORKER, "; ".join(_hang(each) for each in state.hung))
    if recorded and not (dead and recorded.kind is FailureKind.CRASH):
        return recorded
    if not dead:
        return _without_death(failures, state)
    heartbeats = {each.rank: each for each in state.heartbeats}
    where = ", ".join(_worker(rank, heartbeats.get(rank)) for rank in sorted(dead))
    if any(getattr(death, "preempted", False) for death in dead.values()):
        return Failure(FailureKind.PREEMPTED, f"the node of {where} was taken away")
    if any(rank in heartbeats and heartbeats[rank].node not in state.alive for rank in dead):
        return Failure(FailureKind.LOST_NODE, f"the node of {where} is gone")
    return Failure(FailureKind.LOST_WORKER, f"{where} died")


def _without_death(failures: Mapping[int, Exception], state: GroupState) -> Failure:
    """The failure of a group in which no worker is known to be dead, and none has recorded a cause."""
    inner = getattr(state.error, "controller_failure", state.error)
    if isinstance(inner, WorkerGroupStartupTimeoutError):
        return Failure(FailureKind.NO_RESOURCES, "the cluster has no room for the workers yet")
    if isinstance(inner, WorkerGroupStartupFailedError):
        if state.is_node_lost:
            return Failure(FailureKind.LOST_NODE, "a node went while workers were started")
        return Failure(FailureKind.LOST_WORKER, "a worker died while it was started")
    if isinstance(inner, RayActorError):
        return Failure(FailureKind.LOST_WORKER, "the process that leads the workers died")
    if failures or state.peer_loss:
        if gone := [each for each in state.heartbeats if each.node not in state.alive]:
            where = ", ".join(_worker(each.rank, each) for each in gone)
            return Failure(FailureKind.LOST_NODE, f"the node of {where} is gone")
        first = next((f"worker {rank}: {_first_line(one)}" for rank, one in failures.items()), "")
        return Failure(FailureKind.LOST_WORKER, f"a worker lost touch with the others ({state.peer_loss or first})")
    return Failure(FailureKind.CRASH, _first_line(inner))


def _death(error: Exception) -> Exception | None:
    """The error of a dead process, which Ray wraps in the failure of its health check; None for any other."""
    inner = getattr(error, "health_check_failure", error)
    return inner if isinstance(inner, RayActorError | WorkerHealthCheckTimeoutError) else None


def _worker(rank: int, heartbeat: Heartbeat | None) -> str:
    """Name of a worker in messages."""
    return f"worker {rank} (process {heartbeat.pid}, at step {heartbeat.step})" if heartbeat else f"worker {rank}"


def _hang(heartbeat: Heartbeat) -> str:
    """Sentence on a worker that hung."""
    return (
        f"worker {heartbeat.rank} (process {heartbeat.pid}) gave no sign of progress at step {heartbeat.step} "
        f"({heartbeat.activity})"
    )


def _first_line(error: BaseException | None) -> str:
    """First line of an error's message that is not blank, else its class."""
    text = str(error or "the job ended without an outcome").strip()
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
