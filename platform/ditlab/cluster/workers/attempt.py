"""One try at a run: a crew of workers trains it, watched."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ray.exceptions import RayActorError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckTimeoutError,
)

from ditlab.cluster.nodes.membership import alive_ids, answering_ids, draining_ids, kill
from ditlab.cluster.workers.channel import PREEMPTED, KeyValueChannel
from ditlab.cluster.workers.group import WorkerGroup
from ditlab.cluster.workers.heartbeat import CHANNEL_ERRORS, HangDetector, Heartbeat, interval
from ditlab.errors import first_line
from ditlab.runs.failures import Failure, FailureKind, failure_from_record
from ditlab.runs.request import RunRequest
from ditlab.runs.signals import StopRequests
from ditlab.training.reporting import RunOutcome, TrainingProgress

POLL = 0.1  # seconds between looks at the board
NOTICE = 90.0  # seconds without a worker, on a cluster that may grow: elsewhere Ray itself gives up after 60
DRAIN_POLL = 2.0  # seconds between looks for nodes that will be taken away: notices come 30 s ahead and more


class Attempt:
    """`run` it once."""

    def __init__(
        self,
        request: RunRequest,
        crew: WorkerGroup,
        keeps_crew: bool,
        on_progress: Callable[[TrainingProgress], None],
        warn: Callable[[str], None],
    ) -> None:
        """With `keeps_crew` it ends when the workers are done with it, not when they are gone."""
        self._request, self._on_progress, self._warn = request, on_progress, warn
        self._crew, self._keeps_crew = crew, keeps_crew
        self._resources = request.experiment().resources
        self._board = KeyValueChannel(f"{request.run_id}-{secrets.token_hex(4)}")
        self._watchman = HangDetector(self._resources.hang_timeout)
        self._signs: list[Heartbeat] = []
        self._hung: list[Heartbeat] = []
        self._stop = ""
        self._warned: dict[int, int] = {}
        self._group = self._board  # until the workers have named theirs
        self._next_look, self._next_drain_look = 0.0, 0.0
        self._nodes = alive_ids()
        self._notice_at = time.monotonic() + NOTICE

    def run(self, wishes: StopRequests) -> RunOutcome | Failure:
        """Follows the workers to the run's end. A wish asks for a final checkpoint."""
        self._crew.give(self._request, self._board.launch, last=not self._keeps_crew)
        try:
            while not (self._crew.is_over() or (self._keeps_crew and self._crew.is_free())):
                self._crew.wait(POLL)
                if wishes.count and self._stop != wishes.reason:
                    self._ask_to_stop(wishes.reason)
                    if wishes.sentence:
                        self._warn(wishes.sentence)
                if wishes.count and not self._crew.has_begun():
                    return Failure(FailureKind.NO_ROOM, "it was stopped while it waited for the cluster")
                with suppress(*CHANNEL_ERRORS):  # what is not heard now may be at the next look
                    self._meet()
                    self._give_notice()
                    self._pass_on()
                    self._look()
            self._meet()
            self._pass_on()
            return self._ended()
        finally:
            self._board.clear()

    def _ask_to_stop(self, reason: str) -> None:
        self._stop = reason
        self._board.put("stop", reason)

    def _meet(self) -> None:
        """Turns to the group of workers that is there now: Ray begins a new one by itself when an elastic run grows."""
        name = self._board.get("group")
        if name and self._group.launch != self._board.group(name).launch:
            self._group, self._warned = self._board.group(name), {}
            self._signs, self._hung, self._watchman = [], [], HangDetector(self._resources.hang_timeout)

    def _give_notice(self) -> None:
        """Says once that no worker has begun for a while."""
        if self._group is self._board and time.monotonic() > self._notice_at:
            self._notice_at = float("inf")
            self._warn("no worker has begun yet: what they run on is still growing, or busy with other work; waiting.")

    def _pass_on(self) -> None:
        if progress := self._group.get_progress():
            self._on_progress(progress)
        for rank in range(self._resources.max_workers):
            messages = self._group.get(f"warnings/{rank}") or []
            for message in messages[self._warned.get(rank, 0) :]:
                self._warn(message)
            self._warned[rank] = max(self._warned.get(rank, 0), len(messages))

    def _look(self) -> None:
        """For workers that hang, and for nodes that will go."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + interval(self._resources.hang_timeout)
            self._signs = self._group.get_signs(self._resources.max_workers) or self._signs
            if not self._hung and (hung := self._watchman.hung(self._signs, now)):
                self._hung = hung
                kill((sign.node, sign.pid, sign.born) for sign in hung)
        if now >= self._next_drain_look and not self._stop:
            self._next_drain_look = now + DRAIN_POLL
            self._nodes |= alive_ids()
            if draining_ids() & {sign.node for sign in self._signs}:
                self._warn("a node will be taken away: saving, then going on elsewhere.")
                self._ask_to_stop(PREEMPTED)

    def _ended(self) -> RunOutcome | Failure:
        outcome = self._group.get("outcome")
        if outcome:
            # A worker process that dies after its work is done (gloo at interpreter exit) does not undo it.
            if self._stop == PREEMPTED and outcome["status"] == "interrupted":
                return Failure(FailureKind.PREEMPTED, f"a node was taken away at step {outcome['step']}")
            return RunOutcome(**outcome)
        if self._crew.is_over():
            self._crew.release_placement_group()
        told = failure_from_record(self._group.get("failure"))
        alive = answering_ids()
        loss = self._group.get("peer_loss") or ""
        return classify(told, self._crew.error, self._signs, self._hung, alive, loss, bool(self._nodes - alive))


def classify(
    told: Failure | None,
    error: BaseException | None,
    signs: Sequence[Heartbeat],
    hung: Sequence[Heartbeat],
    alive: set[str],
    peer_loss: str = "",
    is_node_lost: bool = False,
) -> Failure:
    """What ended a job: what a worker said of itself, what Ray says of its workers, which of them hung.

    A worker that crashed while another one died did so because of it. `peer_loss` is what a worker said that lost
    touch with another one; `is_node_lost` is for workers that had no time to say where they are.
    """
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    dead = {rank: death for rank, one in failures.items() if (death := _death(one))}
    if hung and (dead or not told):
        return Failure(FailureKind.HUNG_WORKER, "; ".join(_hang(sign) for sign in hung))
    if told and not (dead and told.kind is FailureKind.CRASH):
        return told
    if not dead:
        return _without_a_death(error, failures, signs, alive, peer_loss, is_node_lost)
    places = {sign.rank: sign for sign in signs}
    where = ", ".join(_place(rank, places.get(rank)) for rank in sorted(dead))
    if any(getattr(death, "preempted", False) for death in dead.values()):
        return Failure(FailureKind.PREEMPTED, f"the node of {where} was taken away")
    gone = [rank for rank in dead if rank in places and places[rank].node not in alive]
    if gone:
        return Failure(FailureKind.LOST_NODE, f"the node of {where} is gone")
    return Failure(FailureKind.LOST_WORKER, f"{where} died")


def _without_a_death(
    error: BaseException | None,
    failures: Mapping[int, Exception],
    signs: Sequence[Heartbeat],
    alive: set[str],
    peer_loss: str,
    is_node_lost: bool,
) -> Failure:
    """No worker is known to be dead, and none has said what it died of."""
    inner = getattr(error, "controller_failure", error)
    if isinstance(inner, WorkerGroupStartupTimeoutError):
        return Failure(FailureKind.NO_ROOM, "the cluster has no room for the workers yet")
    if isinstance(inner, WorkerGroupStartupFailedError):
        if is_node_lost:
            return Failure(FailureKind.LOST_NODE, "a node went while workers were started")
        return Failure(FailureKind.LOST_WORKER, "a worker died while it was started")
    if isinstance(inner, RayActorError):
        return Failure(FailureKind.LOST_WORKER, "the process that leads the workers died")
    if failures or peer_loss:
        if gone := [sign for sign in signs if sign.node not in alive]:
            return Failure(
                FailureKind.LOST_NODE, f"the node of {', '.join(_place(each.rank, each) for each in gone)} is gone"
            )
        first = peer_loss or next((f"worker {rank}: {first_line(one)}" for rank, one in failures.items()), "")
        return Failure(FailureKind.LOST_WORKER, f"a worker lost touch with the others ({first})")
    return Failure(FailureKind.CRASH, first_line(inner) if inner else "the job ended without an outcome")


def _death(error: Exception) -> Exception | None:
    """Ray wraps the death of a worker's process in the failure of its health check."""
    inner = getattr(error, "health_check_failure", error)
    return inner if isinstance(inner, RayActorError | WorkerHealthCheckTimeoutError) else None


def _place(rank: int, sign: Heartbeat | None) -> str:
    return f"worker {rank} (process {sign.pid}, at step {sign.step})" if sign else f"worker {rank}"


def _hang(sign: Heartbeat) -> str:
    return f"worker {sign.rank} (process {sign.pid}) gave no sign of progress at step {sign.step} ({sign.doing})"
