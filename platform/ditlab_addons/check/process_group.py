"""Group of local worker processes without Ray: spawned, joined over a file, and gone with the
process that began it.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.processes import follow_parent
from ditlab.data.splits import open_data
from ditlab.engine.deepspeed_internals import release_process_group
from ditlab.engine.distributed import Rank, current_rank, is_peer_loss
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.progress import ignore
from ditlab.runs.cores import sleep_at_barriers
from ditlab.spec.experiment import Experiment, validate_experiment
from ditlab.training.hooks import StepHook
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import Trainer

CAUSE_TIMEOUT = 5.0
"""Seconds that a worker's loss of contact waits for its cause, another worker's own error or
end.
"""
END_TIMEOUT = 10.0
"""Seconds in which a worker ends by itself after its work, before it is killed."""
_parent: Connection | None = None  # in a worker's process: to the one that began the group


def report_done(number: int) -> None:
    """Report from the body of a worker how many units of its work are done; elsewhere nothing
    happens.
    """
    if _parent:
        _parent.send(("done", number))


def run_workers(
    body: Callable[..., Any],
    arguments: tuple[Any, ...],
    world_size: int,
    use_gpu: bool = False,
    threads: int | None = None,
    on_done: Callable[[int], object] = ignore,
) -> list[Any]:
    """Run `body(rank, *arguments)` in so many new processes of one process group, and return their
    results by rank.

    `body` is a function of a module, which travels by its name. A worker has a GPU and NCCL with
    `use_gpu`, else CPU and gloo, so many threads (None: torch's number, or `OMP_NUM_THREADS`), and
    collectives that wait half an hour. `on_done` receives what the bodies report by `report_done`.
    No process is left when this returns or raises, nor when this process is interrupted or killed.

    Raises:
        RunFailed: a worker was killed.
        Exception: the first error of a worker, of its own type where that travels, with its
            traceback as a note.
    """
    context = _context()
    if threads:
        sleep_at_barriers(threads, world_size)
    with tempfile.TemporaryDirectory(prefix="ditlab-") as folder:
        processes = []
        connections = []
        try:
            for rank in range(world_size):
                connection, theirs = context.Pipe()
                work = theirs, body, arguments, rank, world_size, use_gpu, threads, folder
                process = context.Process(target=_run_worker, args=work, daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(connection)
            results = _collect(processes, connections, on_done)
            for connection in connections:
                connection.send("end")
            deadline = time.monotonic() + END_TIMEOUT
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            return results
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
            for connection in connections:
                connection.close()


def open_in_worker(spec: Mapping[str, Any], root: str) -> tuple[Experiment, Home]:
    """Open an experiment and the home of path `root` in a worker's process, with the environment of
    a run.
    """
    home = Home(Path(root))
    experiment = validate_experiment(spec)
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    return experiment, home


def unattended_run(
    experiment: Experiment, home: Home, folder: Path, changes: Mapping[str, Any]
) -> TrainingRun:
    """Return a run of which single steps are done, with its files in a folder and further changes
    of the spec.

    Each step is logged, none evaluated, and no loss ends the training.
    """
    own = experiment.replace_all(
        {
            "tracking.every": 1,
            "evaluation.every": None,
            "evaluation.samples": 0,
            "evaluation.quality": 0,
            "checkpoint.storage": None,
            "checkpoint.keep": 1,
            "training.non_finite.policy": "skip",
            "training.non_finite.limit": 2**31 - 1,
            **changes,
        }
    )
    # The process that began the group has opened the data before, and given their messages.
    data = open_data(own.data, home, verify=False, notify=ignore)
    checkpoints = CheckpointStore.at(folder / "checkpoints")
    return TrainingRun(own, data, plan_run(own, data), checkpoints, home)


def observed_trainer(run: TrainingRun, rank: Rank, observer: StepHook) -> Trainer:
    """Return a trainer that reports to nobody but an observer."""
    return Trainer(run, rank, Reporter(lambda: False, ignore, ProgressMarker()), [observer])


def _context() -> Any:
    # a fork of a process with threads, as torch has, may hang
    return multiprocessing.get_context("spawn")


def _collect(
    processes: list[Any], connections: list[Connection], on_done: Callable[[int], object]
) -> list[Any]:
    """Wait for every worker's result. Raises the first error; a loss of contact gives way to its
    cause.
    """
    results: dict[int, Any] = {}
    lost: list[Exception] = []
    waiting = dict(enumerate(connections))
    while waiting:
        ready = wait([*waiting.values()], CAUSE_TIMEOUT if lost else None)
        if not ready:
            break
        for rank in [rank for rank, connection in waiting.items() if connection in ready]:
            try:
                # of a process that this one started: nobody else can write to the pipe
                kind, value = waiting[rank].recv()
            except (EOFError, ConnectionError):
                raise _lost_worker(rank, processes[rank]) from None
            if kind == "done":
                on_done(value)
                continue
            del waiting[rank]
            if kind == "error":
                raise value
            if kind == "lost_peer":
                lost.append(value)
            else:
                results[rank] = value
    if lost:
        raise lost[0]
    return [results[rank] for rank in range(len(connections))]


def _lost_worker(rank: int, process: Any) -> RunFailed:
    """Return the error of a worker that sends nothing any more: how its process ended."""
    process.join(END_TIMEOUT)
    code = process.exitcode
    how = f"ended with exit code {code}"
    if code and code < 0:
        how = f"was killed by signal {-code}"
    remedy = ""
    if code == -9:
        remedy = "; memory may have run out: try fewer workers or smaller micro-batches"
    return RunFailed(f"worker process {rank} {how}{remedy}.", kind="lost_worker")


def _run_worker(
    connection: Connection,
    body: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    world_size: int,
    use_gpu: bool,
    threads: int | None,
    folder: str,
) -> None:
    """Run the body in a new process, and send what came of it: `result`, `error` or `lost_peer`,
    and its value.
    """
    follow_parent()
    global _parent
    _parent = connection
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        own = current_rank(use_gpu, rank, world_size, local_rank=rank)
        # Its path, as torch reads a `file://` address without decoding it.
        store = distributed.FileStore(f"{folder}/rendezvous", world_size)  # type: ignore[attr-defined]
        distributed.init_process_group(
            "nccl" if use_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=own.timeout),
        )
        # Pickled here, so that a result that does not travel is an error of this worker's.
        report = ForkingPickler.dumps(("result", body(own, *arguments)))
    except Exception as error:
        kind = "lost_peer" if is_peer_loss(error) else "error"
        note = "".join(traceback.format_exception(error)).rstrip()
        error.__traceback__ = None
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # its type does not travel
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(f"In a worker process:\n{note}")
        report = ForkingPickler.dumps((kind, error))
    connection.send_bytes(report)
    connection.recv()  # with the group whole: another worker may still read what this one sent it
    release_process_group()
