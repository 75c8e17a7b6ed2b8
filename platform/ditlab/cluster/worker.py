"""What Ray Train runs on every worker."""

import json
import os
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from ray import train

from ditlab.cluster.board import Board
from ditlab.cluster.recording import SilentReporter, TrackedReporter
from ditlab.cluster.request import RunRequest
from ditlab.data.sources import open_data
from ditlab.engine.distributed import Rank, current_rank
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.tracking.tracker import RunTracker
from ditlab.training.loop import train as train_worker

STOP_POLL = 0.5  # seconds between looks at the board


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function: one worker of one run."""
    request = RunRequest(**config["request"])
    board = Board(config["launch"])
    experiment = request.experiment()
    context = train.get_context()
    torch.set_num_threads(config["threads"])
    for name, value in Home(Path(request.home)).cache_variables().items():
        os.environ.setdefault(name, value)
    rank = current_rank(
        experiment.resources.gpus_per_worker > 0,
        context.get_world_rank(),
        context.get_world_size(),
        context.get_local_rank(),
    )
    try:
        _train(request, board, rank)
    except (UserError, RunFailed) as error:
        board.put_first("failure", {"kind": type(error).__name__, "message": str(error), "rank": rank.rank})
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
        board.put_first("failure", {"kind": "crash", "message": message, "rank": rank.rank, "trace": trace})
        raise


def _train(request: RunRequest, board: Board, rank: Rank) -> None:
    experiment = request.experiment()
    data = open_data(experiment.data, Home(Path(request.home)))
    with ExitStack() as stack:
        stop = stack.enter_context(_StopWatch(board))
        common: dict[str, Any] = {"should_stop": stop.is_set, "on_checkpoint": _report, "warn": _warner(board)}
        if rank.is_first:
            tracked = stack.enter_context(TrackedReporter(request, data, board.put_progress, _num_nodes(), **common))
            outcome = train_worker(experiment, data, request.checkpoints(), rank, tracked)
            tracked.finish(outcome)
            board.put("outcome", outcome.__dict__)
        else:
            if rank.local_rank == 0 and experiment.tracking.system_metrics:
                stack.enter_context(_watch_node(request))
            train_worker(experiment, data, request.checkpoints(), rank, SilentReporter(**common))


def _num_nodes() -> int:
    context = train.get_context()
    return -(-context.get_world_size() // context.get_local_world_size())


def _watch_node(request: RunRequest) -> RunTracker:
    """System metrics of a node that is not the first worker's, into the same tracked run."""
    uri = request.spec["tracking"]["uri"]
    tracker = RunTracker(request.folder(), uri, Home(Path(request.home)), node=train.get_context().get_node_rank())
    tracker.watch_system(num_nodes=_num_nodes())
    return tracker


def _report(step: int, path: Path, metrics: Mapping[str, float]) -> None:
    """Tells Ray Train of a checkpoint by a pointer to it: the checkpoint itself lies where it shall stay already."""
    if train.get_context().get_world_rank() != 0:
        train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pointer.json").write_text(json.dumps({"step": step, "path": str(path)}), encoding="utf-8")
        train.report({"step": step, **metrics}, checkpoint=train.Checkpoint.from_directory(folder))


def _warner(board: Board) -> Any:
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(message)
        board.put("warnings", warnings)

    return warn


class _StopWatch:
    """Looks at the board now and then, off the training thread."""

    def __init__(self, board: Board) -> None:
        self._board, self._wanted, self._over = board, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="stop-watch", daemon=True)
        self.is_set = self._wanted.is_set

    def _look(self) -> None:
        while not self._over.wait(STOP_POLL):
            if self._board.get("stop"):
                self._wanted.set()
                return

    def __enter__(self) -> "_StopWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
