"""What Ray Train runs on every worker."""

import gc
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ray import train
from ray.util.placement_group import get_current_placement_group
from torch import distributed

from ditlab.cluster.nodes.joining import check_joining_node
from ditlab.cluster.nodes.membership import node_name
from ditlab.cluster.workers.channel import PAUSED, PREEMPTED, STOPPED, KeyValueChannel
from ditlab.cluster.workers.heartbeat import CHANNEL_ERRORS, HeartbeatThread
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank, current_rank, is_peer_loss
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.runs.locks import writing
from ditlab.runs.reporter import TrackedReporter, most_nodes
from ditlab.runs.request import RunRequest
from ditlab.secrets import hide, raise_hidden
from ditlab.storage.failures import Unreachable
from ditlab.tracking.tracker import RunTracker
from ditlab.training.loop import train as train_worker
from ditlab.training.memory import OutOfMemory, is_out_of_memory
from ditlab.training.progress_marker import Pulse
from ditlab.training.reporting import SilentReporter

STOP_POLL = 0.5  # seconds between looks at the board
POLL = 0.05  # seconds between looks for the next run, or for leave to go on
PATIENCE = 60.0  # seconds after which the other workers hear that there is none yet


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function: one worker of a crew, through all the runs that it is given."""
    crew, context = KeyValueChannel(config["crew"]), train.get_context()
    torch.set_num_threads(config["threads"])
    use_gpu = config["gpus"] > 0
    rank = current_rank(
        use_gpu, context.get_world_rank(), context.get_world_size(), context.get_local_rank(), config["timeout"]
    )
    if use_gpu and config["gpus"] < 1:
        torch.cuda.set_per_process_memory_fraction(config["gpus"])  # the rest is the neighbours'
    if rank.is_first:
        crew.put("place", get_current_placement_group().id.hex())
    while not (order := _next_order(crew, rank)).get("over"):
        try:
            _serve(RunRequest.from_dict(order["request"]), KeyValueChannel(order["launch"]), rank)
        except Exception as error:
            if order["last"] or not _can_go_on(error, rank):
                raise_hidden(error)  # Ray writes it into its logs
        if order["last"]:
            return
        gc.collect()
        torch._dynamo.reset()  # compiled code of one run counts against the limits of the next
        if rank.is_first:
            crew.put("done", order["number"])


def _can_go_on(error: Exception, rank: Rank) -> bool:
    """Whether the process is fit for another run after one that failed."""
    if rank.world_size > 1 or is_out_of_memory(error):
        return False  # the other workers are left in the middle of a step; memory is in pieces
    # A CUDA context does not outlive an error in a kernel, and most of those come to light later.
    return rank.device.type == "cpu" or isinstance(error, UserError | RunFailed)


def _next_order(crew: KeyValueChannel, rank: Rank) -> dict[str, Any]:
    """The first order that is not done, on all workers alike."""
    found: list[dict[str, Any] | None] = [None]
    while found[0] is None:
        deadline = time.monotonic() + min(PATIENCE, rank.timeout / 2)
        while rank.is_first and found[0] is None and time.monotonic() < deadline:
            order = crew.get("order")
            if order and order["number"] > (crew.get("done") or 0):
                found = [order]
            else:
                time.sleep(POLL)
        if rank.world_size > 1:
            distributed.broadcast_object_list(found, 0)  # `nothing yet` too: gloo gives up on those that say nothing
    return found[0]


def _serve(request: RunRequest, board: KeyValueChannel, rank: Rank) -> None:
    """One run."""
    experiment = request.experiment()
    for name, value in Home(Path(request.home)).cache_variables().items():
        os.environ.setdefault(name, value)
    pulse, group = Pulse(), _group(board, rank)
    signs = HeartbeatThread(group, rank.rank, pulse, experiment.resources.hang_timeout)
    signs.start()
    try:
        check_joining_node(request)
        _train(request, board, group, rank, pulse)
    except Exception as error:
        if is_peer_loss(error):
            first = str(error).splitlines()[0].split(". ")[0]  # the rest is gloo's advice
            group.put_first("peer_loss", hide(f"worker {rank.rank}: {first[:300]}"))
        else:
            told = {"rank": rank.rank, **_told(error, request.resumed)}
            words = {key: hide(told[key]) for key in ("message", "trace") if key in told}
            group.put_first("failure", {**told, **words})
        raise
    finally:
        signs.stop()


def _group(board: KeyValueChannel, rank: Rank) -> KeyValueChannel:
    """The board of this group of workers, named by the first one."""
    name = [secrets.token_hex(4)]
    distributed.broadcast_object_list(name, 0)
    group = board.group(name[0])
    if rank.is_first:
        board.put("group", name[0])
    return group


def _told(error: Exception, resumed: bool) -> dict[str, Any]:
    """What the launcher gets to know of an exception."""
    if isinstance(error, Unreachable) and resumed:
        return {"kind": "storage_unreachable", "message": str(error)}
    if isinstance(error, UserError):
        return {"kind": "user_error", "message": str(error)}
    if isinstance(error, RunFailed):
        return {"kind": error.kind, "message": str(error), "trace": ""}
    if isinstance(error, OutOfMemory):
        return {"kind": "out_of_memory", "message": error.message, "step": error.step}
    return {"kind": "crash", "message": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _train(request: RunRequest, board: KeyValueChannel, group: KeyValueChannel, rank: Rank, pulse: Pulse) -> None:
    experiment = request.experiment()
    home, places = Home(Path(request.home)), _node_names(rank)
    nodes = list(dict.fromkeys(places))  # that of the first worker first
    warn = _warner(group, rank.rank)
    data = open_data(experiment.data, home, say=warn if rank.local_rank == 0 else _unsaid)  # once a node
    with ExitStack() as stack:
        stop = stack.enter_context(_StopWatch(board))
        common: dict[str, Any] = {"should_stop": stop.is_set, "warn": warn, "pulse": pulse}
        reporter: Any = SilentReporter(**common)
        if rank.is_first:
            stack.enter_context(writing(request.folder(), warn=common["warn"]))
            gate = _Gate(request, stop.is_set, pulse, min(PATIENCE, rank.timeout / 2))
            reporter = TrackedReporter(
                request, data, _heard(group.put_progress), gate.evaluated, rank.world_size, nodes, **common
            )
            stack.enter_context(reporter)
        elif places.index(places[rank.rank]) == rank.rank and experiment.tracking.system_metrics:
            node = nodes.index(places[rank.rank])
            stack.enter_context(writing(request.folder(), node))
            stack.enter_context(_watch_node(request, node, most_nodes(experiment, nodes)))
        checkpoints, swap = request.checkpoints(), request.folder().path / "swap"
        outcome = train_worker(experiment, data, checkpoints, rank, reporter, request.room, swap, home)
        if outcome.status == "interrupted" and stop.reason == STOPPED:
            outcome = replace(outcome, status="stopped")
        if rank.is_first:
            if outcome.status != "interrupted" or stop.reason not in (PREEMPTED, PAUSED):  # it goes on soon
                reporter.finish(outcome)
            group.put("outcome", outcome.__dict__)


def _node_names(rank: Rank) -> list[str]:
    """Each worker's node, in order of rank."""
    names = [node_name()] * rank.world_size
    distributed.all_gather_object(names, node_name())
    return names


def _watch_node(request: RunRequest, node: int, num_nodes: int) -> RunTracker:
    """System metrics of a node that is not the first worker's, into the same tracked run."""
    tracking, home = request.experiment().tracking, Home(Path(request.home))
    tracker = RunTracker(request.folder(), tracking.uri, home, node=node, budget=tracking.budget)
    tracker.watch_system(num_nodes=num_nodes)
    return tracker


def _warner(board: KeyValueChannel, rank: int) -> Any:
    """Warnings for people; the workers' words stand apart, so that none is written over another's."""
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(hide(message))
        _heard(board.put)(f"warnings/{rank}", warnings)

    return warn


def _unsaid(message: str) -> None:
    """What another worker of the node says, too."""


def _heard(say: Callable[..., None]) -> Callable[..., None]:
    """The same, but news that cannot be put on the board is dropped: it costs no step."""

    def said(*words: Any) -> None:
        with suppress(*CHANNEL_ERRORS):
            say(*words)

    return said


class _Gate:
    """A sweep's trial tells its evaluations, and waits for leave to go on where its scheduler wants that."""

    def __init__(self, request: RunRequest, is_stopping: Callable[[], bool], pulse: Pulse, patience: float) -> None:
        self._patience = patience
        self._board = KeyValueChannel(request.board) if request.board else None
        self._is_gated, self._is_stopping, self._pulse = request.gated, is_stopping, pulse

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether to wait still; returns after a while in any case."""
        if self._board is None:
            return False
        self._pulse.at(step, "waiting for the sweep's scheduler", is_patient=True)
        _heard(self._board.put)("report", {"step": step, "metrics": dict(metrics)})
        deadline = time.monotonic() + self._patience
        while waits := self._is_gated and not self._is_stopping() and self._allowed() < step:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL)
        return waits

    def _allowed(self) -> int:
        assert self._board
        with suppress(*CHANNEL_ERRORS):
            return self._board.get("go") or 0
        return 0


class _StopWatch:
    """Looks at the board now and then, off the training thread."""

    def __init__(self, board: KeyValueChannel) -> None:
        self._board, self._wanted, self._over = board, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="stop-watch", daemon=True)
        self.is_set = self._wanted.is_set
        self.reason = ""

    def _look(self) -> None:
        while not self._over.wait(STOP_POLL):
            with suppress(*CHANNEL_ERRORS):
                if reason := self._board.get("stop"):
                    self.reason = reason  # a person's wish may follow that of the cluster
                    self._wanted.set()

    def __enter__(self) -> "_StopWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
