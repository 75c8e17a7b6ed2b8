"""Runs a training as Ray Train workers and follows it to its end."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ditlab.cluster.capacity import check_capacity, cpus_per_worker
from ditlab.cluster.request import RunRequest
from ditlab.cluster.session import ray_session
from ditlab.cluster.signals import stop_signals
from ditlab.errors import RunFailed, UserError
from ditlab.spec.experiment import Experiment
from ditlab.training.reporting import Outcome, Progress

POLL = 0.25  # seconds between looks at the board


def launch(
    request: RunRequest,
    cores: int,
    on_progress: Callable[[Progress], None],
    warn: Callable[[str], None],
) -> Outcome:
    """Trains on Ray, on the cluster that this process is connected to or else on an instance of its own; returns how it
    ended.

    Ctrl-C or SIGTERM asks the workers for a final checkpoint; a second one ends them at once.

    Raises:
        UserError: the worker body says that the input is wrong.
        RunFailed: a worker failed.
    """
    experiment = request.experiment()
    needed = cpus_per_worker(experiment, [{"CPU": cores}]) * experiment.resources.num_workers
    with ray_session(None, needed) as ray:
        return _follow(request, cpus_per_worker(experiment, _nodes(ray)), on_progress, warn)


@contextmanager
def connected(experiment: Experiment, address: str | None) -> Iterator[None]:
    """Inside: connected to the cluster at `address`, which can hold the run. Does nothing where `address` is None.

    Raises UserError before anything of the run exists.
    """
    if address is None:
        yield
        return
    with ray_session(address, 0) as ray:
        check_capacity(experiment, _nodes(ray))
        yield


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _follow(
    request: RunRequest, threads: int, on_progress: Callable[[Progress], None], warn: Callable[[str], None]
) -> Outcome:
    from ditlab.cluster.board import Board

    name = secrets.token_hex(4)  # a name of its own for each launch: Ray Train shall not restore by name
    board = Board(f"{request.run_id}-{name}")
    trainer = _trainer(request, threads, name, board._launch)
    fit = _Fit(trainer)
    warned = 0
    with stop_signals() as wishes:
        fit.start()
        told = False
        while fit.is_alive():
            fit.join(POLL)
            if wishes.count and not told:
                board.put("stop", True)
                told = True
                warn("stopping after a final checkpoint; once more ends at once.")
            progress = board.get_progress()
            if progress:
                on_progress(progress)
            messages = board.get("warnings") or []
            for message in messages[warned:]:
                warn(message)
            warned = max(warned, len(messages))
        outcome, failure = board.get("outcome"), board.get("failure")
        board.clear()
    if outcome:
        # A worker process that dies after its work is done (gloo at interpreter exit) does not undo it.
        return Outcome(**outcome)
    raise _failure(failure, fit.error)


def _failure(failure: dict[str, Any] | None, error: BaseException | None) -> Exception:
    if failure and failure["kind"] == "UserError":
        return UserError(failure["message"])
    if failure and failure["kind"] == "RunFailed":
        return RunFailed(failure["message"])
    if failure:
        return RunFailed(f"worker {failure['rank']} failed: {failure['message']}\n{failure['trace']}")
    return RunFailed(f"a worker was lost: {error}")


class _Fit(threading.Thread):
    """`fit` in a thread of its own, so that signals are ours."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(name="ray-train", daemon=True)
        self._trainer = trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:
            self.error = error


def _trainer(request: RunRequest, threads: int, name: str, launch_name: str) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from ditlab.cluster.worker import run_worker

    experiment = request.experiment()
    use_gpu = experiment.resources.gpus_per_worker > 0
    return TorchTrainer(
        run_worker,
        train_loop_config={"request": asdict(request), "launch": launch_name, "threads": threads},
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=experiment.resources.num_workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": threads, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(request.folder().path / "ray"),
            failure_config=FailureConfig(max_failures=0),
            checkpoint_config=CheckpointConfig(num_to_keep=1),  # pointers; the checkpoints are kept by our own policy
        ),
    )
