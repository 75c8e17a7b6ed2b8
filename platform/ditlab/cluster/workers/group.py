"""A Ray Train job whose workers train one run after another: the next one finds them warm."""

import os
import secrets
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from ditlab.cluster.autoscaling import has_autoscaler
from ditlab.cluster.capacity import Share
from ditlab.cluster.nodes.membership import count_anew, give_back
from ditlab.cluster.workers.channel import Board
from ditlab.cluster.workers.entry import run_worker
from ditlab.cluster.workers.heartbeat import UNHEARD
from ditlab.runs.request import RunRequest
from ditlab.spec.resources import Resources

# Seconds that Ray Train asks for room on a cluster that grows, not 60: a new instance is installed for ten minutes, and
# a request that is taken back would send it away again. An elastic run asks for as long as it lasts in any case.
GROWING = "3600"


@dataclass(frozen=True)
class Shape:
    """What the workers of a crew are: runs of one shape can follow each other in one crew."""

    resources: Resources
    share: Share


class Crew:
    """The workers, from the start of their processes to their end."""

    def __init__(self, shape: Shape, storage: Path) -> None:
        self.shape = shape
        name = secrets.token_hex(4)  # of each crew its own: Ray Train shall not restore by name
        self._board = Board(f"crew-{name}")
        self._fit = _Fit(
            _trainer(shape, storage, name, self._board.launch), not isinstance(shape.resources.workers, int)
        )
        self._orders = 0

    def give(self, request: RunRequest, launch: str, last: bool) -> None:
        """Lets the workers train a run and report on the board `launch`; after the last one they end."""
        self._orders += 1
        order = {"number": self._orders, "launch": launch, "request": asdict(request), "last": last}
        self._board.put("order", order)
        if self._orders == 1:
            self._fit.start()

    def has_begun(self) -> bool:
        """Whether there has been room for the workers, and one of them has said so."""
        with suppress(*UNHEARD):
            return bool(self._board.get("place"))
        return True

    def is_over(self) -> bool:
        """Whether the workers are gone."""
        return not self._fit.is_alive()

    def is_free(self) -> bool:
        """Whether the workers are there, and done with all that was given to them."""
        with suppress(*UNHEARD):
            return self._fit.is_alive() and (self._board.get("done") or 0) >= self._orders
        return False

    def wait(self, seconds: float) -> None:
        """Returns when the workers are gone, or after some seconds."""
        self._fit.join(seconds)

    @property
    def error(self) -> BaseException | None:
        """What Ray Train said when the workers ended."""
        return self._fit.error

    def dismiss(self, patience: float = 60.0) -> None:
        """Ends the workers once they are free; those that are not after `patience` seconds lose their room, and end."""
        with suppress(*UNHEARD):
            if self._fit.is_alive():
                self._board.put("order", {"number": self._orders + 1, "over": True})
                if not self.has_begun():
                    return  # nobody to wait for; workers that still come find that it is over
                self._fit.join(patience)
            if self._fit.is_alive():
                self.give_back()
            self._board.clear()

    def give_back(self) -> None:
        """The room of workers whose leader has died: Ray would keep it reserved."""
        if place := self._board.get("place"):
            give_back(place)


class Crews:
    """At most one crew at a time, kept from run to run where `keep` and its shape allow it."""

    def __init__(self, storage: Path, keep: bool) -> None:
        self._storage, self.keep = storage, keep
        self._crew: Crew | None = None

    def ready(self, shape: Shape) -> Crew:
        """A crew that is free for a run of this shape."""
        if self._crew is None or self._crew.shape != shape or not self._crew.is_free():
            self.dismiss()
            self._crew = Crew(shape, self._storage)
        return self._crew

    def dismiss(self) -> None:
        """Ends the crew that is there."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None


class _Fit(threading.Thread):
    """`fit` in a thread of its own, so that signals are ours."""

    def __init__(self, trainer: TorchTrainer, is_elastic: bool) -> None:
        super().__init__(name="ray-train", daemon=True)
        self._trainer, self._is_elastic = trainer, is_elastic
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if self._is_elastic:
                with suppress(*UNHEARD):
                    count_anew()
            self._trainer.fit()
        except BaseException as error:
            self.error = error


def _trainer(shape: Shape, storage: Path, name: str, board: str) -> TorchTrainer:
    resources, share = shape.resources, shape.share
    if isinstance(resources.workers, int) and has_autoscaler():
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", GROWING)
    use_gpu = resources.gpus_per_worker > 0
    elastic: dict[str, Any] = {}
    if not isinstance(resources.workers, int):
        elastic = {"elastic_resize_monitor_interval_s": resources.workers.interval}
    return TorchTrainer(
        run_worker,
        train_loop_config={
            "crew": board,
            "threads": share.threads,
            "gpus": resources.gpus_per_worker,
            "timeout": resources.collective_timeout,
        },
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo", timeout_s=resources.collective_timeout),
        scaling_config=ScalingConfig(
            num_workers=(resources.min_workers, resources.max_workers) if elastic else resources.max_workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": share.cpus, **({"GPU": resources.gpus_per_worker} if use_gpu else {})},
            **elastic,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(storage),
            # Nothing is tried again by Ray itself: `failures` decides, counts and says so.
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0, controller_failure_limit=0),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            # Before the process group exists: NCCL reads its variables once.
            worker_runtime_env={"env_vars": variables} if (variables := resources.network.environment()) else None,
        ),
    )
