"""One attempt at a run: a worker group trains it while the launcher watches, and diagnoses a group
that ended early.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from ray.exceptions import RayActorError, RayError
from ray.train import WorkerGroupError

from ditlab.cluster.channel import (
    CHANNEL_ERRORS,
    PREEMPTED,
    HangDetector,
    Heartbeat,
    KeyValueChannel,
    heartbeat_interval,
    read_heartbeats,
)
from ditlab.cluster.nodes import alive_ids, answering_ids, kill_processes
from ditlab.cluster.ray_failures import is_bug, ray_failure, unwrap
from ditlab.cluster.ray_internals import ray_internal
from ditlab.cluster.session import lost_ray
from ditlab.cluster.workers import WorkerGroup
from ditlab.errors import first_line
from ditlab.runs.failures import Failure, FailureKind, failure_from_record
from ditlab.runs.launch import Launch, RunCallbacks
from ditlab.runs.signals import StopRequests
from ditlab.training.reporting import RunOutcome, TrainingProgress

WorkerGroupStartupFailedError = ray_internal("WorkerGroupStartupFailedError")
WorkerGroupStartupTimeoutError = ray_internal("WorkerGroupStartupTimeoutError")
WorkerHealthCheckTimeoutError = ray_internal("WorkerHealthCheckTimeoutError")
POLL_INTERVAL = 0.1  # seconds between two reads of the channel
# seconds without a worker, on a cluster that may grow: elsewhere Ray itself gives up after 60
START_NOTICE = 90.0
# seconds between two searches for nodes that will be taken away: notices come 30 s ahead and more
DRAIN_INTERVAL = 2.0


class Attempt:
    """Launcher's side of one attempt; `run` it once."""

    def __init__(
        self, launch: Launch, workers: WorkerGroup, keeps_workers: bool, callbacks: RunCallbacks
    ) -> None:
        """Prepare an attempt; with `keeps_workers` it ends when the workers are idle, not when they
        are gone.
        """
        self._launch = launch
        self._callbacks = callbacks
        self._workers = workers
        self._keeps_workers = keeps_workers
        self._resources = launch.experiment.resources
        self._control = KeyValueChannel(f"{launch.run_id}-{secrets.token_hex(4)}")
        self._follow(self._control)  # until the workers have named their group
        self._stop_reason = ""
        self._next_hang_check = 0.0
        self._next_drain_check = 0.0
        self._nodes = alive_ids()
        self._notice_at = time.monotonic() + START_NOTICE

    def run(self, stop: StopRequests) -> RunOutcome | Failure:
        """Assign the run to the workers and follow them to its end. A stop request leads to a final
        checkpoint.
        """
        try:
            self._workers.assign(self._launch, self._control.name, last=not self._keeps_workers)
            while not self._is_over():
                lost = lost_ray()
                if lost:
                    return Failure(FailureKind.LOST_NODE, lost)
                if stop.count and self._stop_reason != stop.reason:
                    self._request_stop(stop.reason)
                    if stop.message:
                        self._callbacks.warn(stop.message)
                if stop.count and not self._workers.has_started():
                    return Failure(
                        FailureKind.NO_RESOURCES, "it was stopped while it waited for the cluster"
                    )
                with suppress(*CHANNEL_ERRORS):  # what cannot be read now may be the next time
                    self._read_messages()
                    self._warn_of_waiting()
                    self._kill_hung_workers()
                    self._leave_draining_nodes()
            self._read_messages()
            return self._end()
        except (RayError, ConnectionError) as error:  # this process itself has lost Ray
            lost = lost_ray()
            if lost:
                return Failure(FailureKind.LOST_NODE, lost)
            failure = ray_failure(error, self._heartbeats)
            if failure:
                return failure
            raise
        finally:
            with suppress(*CHANNEL_ERRORS):
                self._control.clear()

    def _is_over(self) -> bool:
        if self._workers.has_ended(POLL_INTERVAL):
            return True
        return self._keeps_workers and self._workers.is_idle()

    def _follow(self, group: KeyValueChannel) -> None:
        """Read from the channel of a group of workers, of which nothing is known yet."""
        self._group = group
        self._hang_detector = HangDetector(self._resources.hang_timeout)
        self._heartbeats: list[Heartbeat] = []
        self._hung: list[Heartbeat] = []
        self._num_warnings: dict[int, int] = {}

    def _warn_of_waiting(self) -> None:
        """Tell once that no worker has begun for a while."""
        if self._group is self._control and time.monotonic() > self._notice_at:
            self._notice_at = float("inf")
            self._callbacks.warn(
                "no worker has begun yet: what they run on is still growing, or busy with "
                "other work; waiting."
            )

    def _request_stop(self, reason: str) -> None:
        """Make the workers stop after a final checkpoint."""
        self._stop_reason = reason
        self._control.put("stop", reason)

    def _read_messages(self) -> None:
        """Pass the workers' progress and new warnings to the callbacks."""
        # Ray starts a new group of workers by itself when an elastic run grows
        name = self._control.get("group")
        if name and self._group.name != self._control.child(name).name:
            self._follow(self._control.child(name))
        progress = self._group.get("progress")
        if progress:
            self._callbacks.on_progress(TrainingProgress(**progress))
        for rank in range(self._resources.max_workers):
            messages = self._group.get(f"warnings/{rank}") or []
            num_told = self._num_warnings.get(rank, 0)
            for message in messages[num_told:]:
                self._callbacks.warn(message)
            self._num_warnings[rank] = max(num_told, len(messages))

    def _kill_hung_workers(self) -> None:
        now = time.monotonic()
        if now < self._next_hang_check:
            return
        self._next_hang_check = now + heartbeat_interval(self._resources.hang_timeout)
        heartbeats = read_heartbeats(self._group, self._resources.max_workers)
        self._heartbeats = heartbeats or self._heartbeats
        if self._hung:
            return
        self._hung = self._hang_detector.hung_workers(self._heartbeats, now)
        if self._hung:
            kill_processes((each.node, each.pid, each.process_start) for each in self._hung)

    def _leave_draining_nodes(self) -> None:
        """Stop the attempt after a checkpoint if one of its nodes will be taken away."""
        now = time.monotonic()
        if now < self._next_drain_check or self._stop_reason:
            return
        self._next_drain_check = now + DRAIN_INTERVAL
        self._nodes |= alive_ids()
        # A spot instance's notice, or a scale-down. Ray's `ray.train.get_preemption_info` was
        # tried: one more actor reads the same list, and each call is a barrier of all workers'
        # training threads, with two workers on two cores 15 ms at the median and 121 ms at most.
        # This call takes 0.6 ms of the launcher, no time of a step, and works while a worker hangs.
        draining = set(ray_internal("state.get_draining_nodes")())
        if draining & {each.node for each in self._heartbeats}:
            self._callbacks.warn("a node will be taken away: saving, then going on elsewhere.")
            self._request_stop(PREEMPTED)

    def _end(self) -> RunOutcome | Failure:
        """Outcome of the run, else the failure that ended the attempt."""
        outcome = self._group.get("outcome")
        if outcome:
            # A worker process that dies after its work is done (gloo at interpreter exit) does not
            # undo it.
            is_lost = self._stop_reason in ("", PREEMPTED) and not outcome["is_asked"]
            if is_lost and outcome["status"] == "interrupted":
                what = "a signal told a worker to end"
                if self._stop_reason:
                    what = "a node was taken away"
                return Failure(FailureKind.PREEMPTED, f"{what} at step {outcome['step']}")
            return RunOutcome(**outcome)
        if self._workers.has_ended():
            self._workers.release_resources()
        alive = answering_ids()
        peer_loss = self._group.get("peer_loss") or ""
        is_node_lost = bool(self._nodes - alive)
        state = GroupState(
            self._workers.error, self._heartbeats, self._hung, alive, peer_loss, is_node_lost
        )
        return diagnose(failure_from_record(self._group.get("failure")), state)


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

    @cached_property
    def failures(self) -> Mapping[int, BaseException]:
        """Exceptions of workers by rank, as Ray Train passes them on."""
        if isinstance(self.error, WorkerGroupError):
            return self.error.worker_failures
        return {}

    @cached_property
    def lost(self) -> dict[int, Failure]:
        """Failures of the workers that Ray lost, by rank."""
        found = {rank: ray_failure(error, self.heartbeats) for rank, error in self.failures.items()}
        return {rank: failure for rank, failure in found.items() if failure}

    @cached_property
    def deaths(self) -> dict[int, BaseException | None]:
        """Causes of death by rank: of workers that Ray lost, and of those that answered no health
        check.
        """
        causes = {rank: unwrap(error) for rank, error in self.failures.items()}
        return {
            rank: cause
            for rank, cause in causes.items()
            if rank in self.lost or isinstance(cause, WorkerHealthCheckTimeoutError)
        }

    @property
    def gone(self) -> set[int]:
        """Ranks of the workers whose node does not answer."""
        return {each.rank for each in self.heartbeats if each.node not in self.alive}

    def places(self, ranks: Iterable[int]) -> str:
        """Name workers for people, with process and step where a heartbeat has told them."""
        known = {
            each.rank: f" (process {each.pid}, at step {each.step})" for each in self.heartbeats
        }
        return ", ".join(f"worker {rank}{known.get(rank, '')}" for rank in sorted(ranks))


def diagnose(recorded: Failure | None, state: GroupState) -> Failure:
    """The failure that ended a group, from what a worker `recorded` of itself and what Ray and
    heartbeats show.

    A worker that crashed while another one died did so because of it.
    """
    if state.hung and (state.deaths or not recorded):
        return _hang(state.hung)
    if recorded and not (state.deaths and recorded.kind is FailureKind.CRASH):
        return recorded
    return _shown_failure(state)


def _shown_failure(state: GroupState) -> Failure:
    """Failure by what Ray and the heartbeats show."""
    error = unwrap(state.error)
    of_leader = ray_failure(error, state.heartbeats)
    for found in (*state.lost.values(), of_leader):
        if found and found.kind in (FailureKind.NODE_OUT_OF_MEMORY, FailureKind.CANNOT_START):
            return found
    if state.deaths:
        return _worker_deaths(state)
    found = _leader_failure(error, of_leader, state.is_node_lost)
    if found:
        return found
    for bug in filter(is_bug, state.failures.values()):
        return Failure(FailureKind.CRASH, str(bug).strip() or type(bug).__name__)
    if state.failures or state.peer_loss:
        return _lost_touch(state)
    if error:
        return Failure(FailureKind.CRASH, first_line(error))
    return Failure(FailureKind.CRASH, "the job ended without an outcome")


def _hang(hung: Sequence[Heartbeat]) -> Failure:
    sentences = []
    for each in hung:
        sentences.append(
            f"worker {each.rank} (process {each.pid}) gave no sign of progress at step "
            f"{each.step} ({each.activity})"
        )
    return Failure(FailureKind.HUNG_WORKER, "; ".join(sentences))


def _worker_deaths(state: GroupState) -> Failure:
    """Failure by the workers that died: their nodes went, or only they did."""
    where = state.places(state.deaths)
    if any(getattr(death, "preempted", False) for death in state.deaths.values()):
        return Failure(FailureKind.PREEMPTED, f"the node of {where} was taken away")
    kinds = {found.kind for found in state.lost.values()}
    if state.gone & state.deaths.keys() or FailureKind.LOST_NODE in kinds:
        return Failure(FailureKind.LOST_NODE, f"the node of {where} is gone")
    reasons = {
        found.message
        for rank, found in state.lost.items()
        if not isinstance(state.deaths[rank], RayActorError)
    }
    if reasons:
        return Failure(FailureKind.LOST_WORKER, f"{where} was lost ({min(reasons)})")
    return Failure(FailureKind.LOST_WORKER, f"{where} died")


def _leader_failure(
    error: BaseException | None, found: Failure | None, is_node_lost: bool
) -> Failure | None:
    """Failure of the process that starts and leads the workers; `found`: what Ray's error says of
    it.
    """
    if isinstance(error, WorkerGroupStartupTimeoutError):
        return Failure(FailureKind.NO_RESOURCES, "the cluster has no room for the workers yet")
    if isinstance(error, WorkerGroupStartupFailedError):
        if is_node_lost:
            return Failure(FailureKind.LOST_NODE, "a node went while workers were started")
        return Failure(FailureKind.LOST_WORKER, "a worker died while it was started")
    if isinstance(error, RayActorError):
        return Failure(FailureKind.LOST_WORKER, "the process that leads the workers died")
    if found and is_node_lost:
        return replace(found, kind=FailureKind.LOST_NODE)
    return found


def _lost_touch(state: GroupState) -> Failure:
    """Failure of workers that lost touch with one another while none is known to have died."""
    if state.gone:
        return Failure(FailureKind.LOST_NODE, f"the node of {state.places(state.gone)} is gone")
    reason = state.peer_loss
    if not reason:
        rank, error = next(iter(state.failures.items()))
        reason = f"worker {rank}: {first_line(error)}"
    return Failure(FailureKind.LOST_WORKER, f"a worker lost touch with the others ({reason})")
