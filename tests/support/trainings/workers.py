"""Runs the worker body in one or more processes without Ray, and keeps what it reports."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import open_data
from ditlab.engine.distributed import current_rank, single_process
from ditlab.home import Home
from ditlab.receipts.writer import ReceiptWriter
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.reporting import ProgressMarker, Reporter, RunOutcome
from ditlab.training.trainer import train
from support.garbage import exempt_imports
from support.trainings.groups import run_group

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "family": "dit",
        "image_size": 8,
        "patch_size": 4,
        "width": 32,
        "depth": 2,
        "num_heads": 2,
    },
    "data": {"kind": "digits"},
    "batch": {"size": 32, "micro": 16},
    "optimizer": {"kind": "adamw", "lr": 1e-3},
    "training": {"steps": 6, "ema": {"decay": 0.9}},
    "checkpoint": {"every": 3, "keep": 5},
    "evaluation": {"every": None},
    "tracking": {"system_metrics": False},
}


def tiny(**changes: Any) -> Experiment:
    """The smallest experiment that has everything; `training__steps=3` changes `training.steps`."""
    spec = json.loads(json.dumps(TINY))
    for path, value in changes.items():
        *parents, last = path.split("__")
        below = spec
        for key in parents:
            below = below.setdefault(key, {})
        below[last] = value
    return class_for(spec).model_validate(spec)


def newest(checkpoints: Path) -> CheckpointReader:
    """The newest whole checkpoint of a folder, which must hold one."""
    reader = CheckpointStore.at(checkpoints).newest()
    assert reader is not None
    return reader


def same_state(one: CheckpointReader, two: CheckpointReader) -> bool:
    """Return True if two checkpoints hold the same bits: weights, moments, average, buffers,
    scalars, position.
    """
    if one.manifest.shapes != two.manifest.shapes or one.manifest.scalars != two.manifest.scalars:
        return False
    if (one.manifest.step, one.manifest.position) != (two.manifest.step, two.manifest.position):
        return False
    for name, shape in one.manifest.shapes.items():
        numel = torch.Size(shape).numel()
        kinds = (
            ("buffer",)
            if name in one.manifest.buffers
            else ("master", "exp_avg", "exp_avg_sq", "ema")
        )
        for kind in kinds:
            if one.has(kind) and not torch.equal(
                one.read(kind, name, 0, numel), two.read(kind, name, 0, numel)
            ):
                return False
    return True


@dataclass
class Recorder(Reporter):
    """A reporter that keeps everything in memory."""

    stop_after: int | None = None
    losses: dict[int, float] = field(default_factory=dict)
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    steps: int = 0
    marker: ProgressMarker = field(default_factory=ProgressMarker)
    receipts: ReceiptWriter | None = None
    tagged: dict[str, str] = field(default_factory=dict)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(values)
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]

    def progress(self, progress: Any) -> None:
        self.steps = progress.step

    def samples(self, step: int, figure: Any) -> None:
        self.pictures.append(step)

    def saved(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        self.checkpoints.append(location)

    def tags(self, values: Mapping[str, str]) -> None:
        self.tagged.update(values)

    def should_stop(self) -> bool:
        return self.stop_after is not None and max(self.losses, default=0) >= self.stop_after

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def training_run(experiment: Experiment, home: Path, checkpoints: Path) -> TrainingRun:
    """Everything that a worker trains from, its data opened."""
    data = open_data(experiment.data, Home(home))
    plan, store = plan_run(experiment, data), CheckpointStore.at(checkpoints)
    return TrainingRun(experiment, data, plan, store, Home(home))


def train_here(
    experiment: Experiment,
    home: Path,
    checkpoints: Path,
    stop_after: int | None = None,
    use_gpu: bool = False,
) -> tuple[RunOutcome, Recorder]:
    """One worker in this process."""
    recorder = Recorder(stop_after)
    run = training_run(experiment, home, checkpoints)
    with single_process(use_gpu) as rank:
        outcome = train(run, rank, recorder)
    exempt_imports()
    return outcome, recorder


def _body(
    rank: int, world_size: int, jobs: Sequence[tuple[dict[str, Any], str, str]], rendezvous: str
) -> None:
    torch.set_num_threads(1)
    place = current_rank(False, rank, world_size, rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    for spec, home, checkpoints in jobs:
        experiment = class_for(spec).model_validate(spec)
        recorder = Recorder()
        train(training_run(experiment, Path(home), Path(checkpoints)), place, recorder)
        if rank == 0:
            Path(checkpoints, "values.json").write_text(json.dumps(recorder.values))
    torch.distributed.destroy_process_group()


def train_workers(
    jobs: Sequence[tuple[Experiment, Path, Path]], world_size: int = 2
) -> list[dict[int, float]]:
    """Several trainings, one after the other, on the same `world_size` processes: losses by step of
    each.

    One start of processes serves them all, as imports cost more than the trainings.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain = [
            (experiment.to_dict(), str(home), str(checkpoints))
            for experiment, home, checkpoints in jobs
        ]
        for _, _, checkpoints in jobs:
            checkpoints.mkdir(parents=True, exist_ok=True)
        run_group(_body, (world_size, plain, f"{folder}/rendezvous"), world_size)
    return [
        {
            step: values["train/loss"]
            for step, values in logged(checkpoints).items()
            if "train/loss" in values
        }
        for _, _, checkpoints in jobs
    ]


def logged(checkpoints: Path) -> dict[int, dict[str, float]]:
    """Metrics by step of a run of `train_workers`."""
    values: dict[str, dict[str, float]] = json.loads((checkpoints / "values.json").read_text())
    return {int(step): found for step, found in values.items()}
