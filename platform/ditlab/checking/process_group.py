"""Group of local worker processes without Ray: spawned, joined over a file, and gone with the process that began it."""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed

from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import current_rank, is_peer_loss, release_process_group
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.spec.experiment import Experiment, class_for

CAUSE_TIMEOUT = 5.0
"""Seconds that a worker's loss of contact waits for its cause, another worker's own error."""
END_TIMEOUT = 10.0
"""Seconds in which a worker ends by itself after its work, before it is killed."""


@dataclass(frozen=True)
class _WorkerReport:
    """Result or error of one worker."""

    kind: Literal["result", "error", "lost_peer"]
    value: Any
    """The body's result, or its exception."""


def run_workers(
    body: Callable[..., Any], arguments: tuple[Any, ...], world_size: int, use_gpu: bool = False,
    threads: int | None = None, timeout: float = 1800.0,
) -> list[Any]:  # fmt: skip
    """Run `body(rank, *arguments)` in so many new processes of one process group, and return their results by rank.

    Args:
        body: function of a module (it is looked up by its name there), called with the worker's `Rank` first. It and
            its results travel between processes; arrays do so as copies, tensors in shared memory.
        arguments: the same for every worker.
        world_size: processes; one worker has a process of its own too.
        use_gpu: one GPU a worker, over NCCL; else CPU, over gloo.
        threads: threads that each worker computes with; None: torch's number, or `OMP_NUM_THREADS`.
        timeout: seconds that a collective waits for the other workers.

    No process is left when this returns or raises, nor when this process is interrupted or killed.

    Raises:
        RunFailed: a worker was killed.
        Exception: the first error of a worker, of its own type where that travels, with its traceback as a note.
    """
    context = _context()
    with tempfile.TemporaryDirectory(prefix="ditlab-") as folder:
        processes, connections = [], []
        try:
            for rank in range(world_size):
                connection, theirs = context.Pipe()
                work = (theirs, body, arguments, rank, world_size, use_gpu, threads, timeout, folder)
                process = context.Process(target=_run_worker, args=work, daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(connection)
            results = _collect(processes, connections)
            for connection in connections:
                connection.send_bytes(b"end")
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


def open_in_worker(spec: Mapping[str, Any], root: str) -> tuple[Experiment, Home, DataSplits]:
    """Open an experiment, the home of path `root` and the data in a worker's process, with the environment of a run."""
    home, experiment = Home(Path(root)), class_for(spec).model_validate(dict(spec))
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    os.environ.update(experiment.resources.network.environment())
    # The process that began the group has opened the data before, and given their messages.
    return experiment, home, open_data(experiment.data, home, verify=False, notify=lambda *_: None)


def _context() -> Any:
    return multiprocessing.get_context("spawn")  # a fork of a process with threads, as torch has, may hang


def _collect(processes: list[Any], connections: list[Connection]) -> list[Any]:
    """Wait for every worker's result. Raises the first error; a loss of contact gives way to its cause."""
    results: dict[int, Any] = {}
    lost: BaseException | None = None
    deadline: float | None = None
    waiting = dict(enumerate(connections))
    while waiting:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(waiting.values()), left)
        if not ready:
            break
        for rank in [rank for rank, connection in waiting.items() if connection in ready]:
            report = _receive(waiting.pop(rank), rank, processes[rank])
            if report.kind == "result":
                results[rank] = report.value
            elif report.kind == "error":
                raise report.value
            elif lost is None:
                lost, deadline = report.value, time.monotonic() + CAUSE_TIMEOUT
    if lost is not None:
        raise lost
    return [results[rank] for rank in range(len(connections))]


def _receive(connection: Connection, rank: int, process: Any) -> _WorkerReport:
    try:
        return connection.recv()  # of a process that this one started: nobody else can write to the pipe
    except (EOFError, ConnectionError):
        process.join(END_TIMEOUT)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        remedy = "; memory may have run out: try fewer workers or smaller micro-batches" if code == -9 else ""
        return _WorkerReport("error", RunFailed(f"worker process {rank} {how}{remedy}.", kind="lost_worker"))


def _run_worker(
    connection: Connection, body: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world_size: int,
    use_gpu: bool, threads: int | None, timeout: float, folder: str,
) -> None:  # fmt: skip
    """Run the body in a new process, and report the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that began the group
    ended = threading.Event()
    threading.Thread(target=_follow_parent, args=(connection, ended), daemon=True).start()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        own = current_rank(use_gpu, rank, world_size, local_rank=rank, timeout=timeout)
        distributed.init_process_group(
            "nccl" if use_gpu else "gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank,
            world_size=world_size, timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        report = _WorkerReport("result", body(own, *arguments))
    except Exception as error:
        report = _WorkerReport("lost_peer" if is_peer_loss(error) else "error", _travelling(error))
    try:
        connection.send(report)
    except Exception as error:  # a result that does not travel
        connection.send(_WorkerReport("error", _travelling(error)))
    ended.wait()  # with the group whole: another worker may still read what this one sent it
    release_process_group()


def _follow_parent(connection: Connection, ended: threading.Event) -> None:
    """Wait until the group is to end; end this process at once where the one that began the group is gone."""
    try:
        connection.recv_bytes()
        ended.set()
    except (EOFError, OSError):
        os._exit(1)


def _travelling(error: Exception) -> Exception:
    """Return the error with its traceback as a note; one whose type does not travel becomes a RuntimeError."""
    note = "".join(traceback.format_exception(error)).rstrip()
    error.__traceback__ = None
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker process:\n{note}")
    return error
