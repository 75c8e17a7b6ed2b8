"""A Ray Train job whose workers train one run after another: the next one finds them warm."""

import secrets
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from ditlab.cluster.board import Board
from ditlab.cluster.capacity import Share
from ditlab.cluster.entry import run_worker
from ditlab.cluster.nodes import give_back
from ditlab.cluster.request import RunRequest
from ditlab.cluster.signs import UNHEARD
from ditlab.spec.engine import Resources


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
        self._fit = _Fit(_trainer(shape, storage, name, self._board.launch))
        self._orders = 0

    def give(self, request: RunRequest, launch: str, last: bool) -> None:
        """Lets the workers train a run and report on the board `launch`; after the last one they end."""
        self._orders += 1
        order = {"number": self._orders, "launch": launch, "request": asdict(request), "last": last}
        self._board.put("order", order)
        if self._orders == 1:
            self._fit.start()

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

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="ray-train", daemon=True)
        self._trainer = trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:
            self.error = error


def _trainer(shape: Shape, storage: Path, name: str, board: str) -> TorchTrainer:
    resources, share = shape.resources, shape.share
    use_gpu = resources.gpus_per_worker > 0
    elastic: dict[str, Any] = {}
    if not isinstance(resources.workers, int):
        elastic = {"elastic_resize_monitor_interval_s": resources.workers.interval}
    return TorchTrainer(
        run_worker,
        train_loop_config={"crew": board, "threads": share.threads, "gpus": resources.gpus_per_worker},
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
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
        ),
    )
