"""Runs the worker body in one or more processes without Ray, and keeps what it reports."""

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import open_data
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.receipts.writer import ReceiptWriter
from ditlab.spec.experiment import class_for
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from support.garbage import exempt_imports
from support.trainings.groups import joined, run_group

TINY = {
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


def tiny(**changes):
    """The smallest experiment that has everything; `training__steps=3` changes `training.steps`."""
    spec = json.loads(json.dumps(TINY))
    for path, value in changes.items():
        *parents, last = path.split("__")
        below = spec
        for key in parents:
            below = below.setdefault(key, {})
        below[last] = value
    return class_for(spec).model_validate(spec)


def newest(checkpoints):
    """The newest whole checkpoint of a folder, which must hold one."""
    reader = CheckpointStore.at(checkpoints).newest()
    assert reader is not None
    return reader


def contents(reader):
    """Whole tensors of a checkpoint by (field, name)."""
    found = {}
    for _, kind, name, *_ in reader.manifest.pieces:
        numel = torch.Size(reader.manifest.shapes[name]).numel()
        found[kind, name] = reader.read(kind, name, 0, numel)
    return found


def same_tensors(one, two):
    """Return True if two mappings hold the same bits under the same keys."""
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def same_state(one, two):
    """Return True if two checkpoints hold the same bits: tensors, scalars, position."""
    for fact in ("shapes", "scalars", "step", "position"):
        if getattr(one.manifest, fact) != getattr(two.manifest, fact):
            return False
    return same_tensors(contents(one), contents(two))


@dataclass
class Recorder(Reporter):
    """A reporter that keeps everything in memory."""

    stop_after: int | None = None
    losses: dict[int, float] = field(default_factory=dict)
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    marker: ProgressMarker = field(default_factory=ProgressMarker)
    receipts: ReceiptWriter | None = None
    tagged: dict[str, str] = field(default_factory=dict)

    def metrics(self, step, values):
        self.values.setdefault(step, {}).update(values)
        if "train/loss" in values:
            self.losses[step] = values["train/loss"]

    def samples(self, step, figure):
        self.pictures.append(step)

    def tags(self, values):
        self.tagged.update(values)

    def should_stop(self):
        return self.stop_after is not None and max(self.losses, default=0) >= self.stop_after

    def warn(self, message):
        self.warnings.append(message)


def training_run(experiment, home, checkpoints):
    """Everything that a worker trains from, its data opened."""
    data = open_data(experiment.data, Home(home))
    plan, store = plan_run(experiment, data), CheckpointStore.at(checkpoints)
    return TrainingRun(experiment, data, plan, store, Home(home))


def train_here(
    experiment,
    home,
    checkpoints,
    stop_after=None,
    use_gpu=False,
    recorder=None,
    hooks=(),
    **changes,
):
    """One worker in this process; `changes` are those of the run."""
    recorder = recorder or Recorder(stop_after)
    run = replace(training_run(experiment, home, checkpoints), **changes)
    with single_process(use_gpu) as rank:
        outcome = train(run, rank, recorder, hooks)
    exempt_imports()
    return outcome, recorder


def resumed_exactly(experiment, home, folder, stop_after, use_gpu=False):
    """Train a run `whole`, and another one in `parts`; check that they end in the same bits, and
    return the first one's recorder.
    """
    outcome, recorder = train_here(experiment, home, folder / "whole", use_gpu=use_gpu)
    assert (outcome.status, outcome.step) == ("finished", experiment.training.steps)
    stopped, _ = train_here(experiment, home, folder / "parts", stop_after, use_gpu)
    assert (stopped.status, stopped.step) == ("interrupted", stop_after)
    train_here(experiment, home, folder / "parts", use_gpu=use_gpu)
    assert same_state(newest(folder / "whole"), newest(folder / "parts"))
    return recorder


def _body(rank, world_size, jobs, folder):
    with joined(rank, world_size, folder) as place:
        for spec, home, checkpoints in jobs:
            experiment = class_for(spec).model_validate(spec)
            recorder = Recorder()
            train(training_run(experiment, Path(home), Path(checkpoints)), place, recorder)
            if rank == 0:
                Path(checkpoints, "values.json").write_text(json.dumps(recorder.values))


def train_workers(jobs, world_size=2):
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
        run_group(_body, (world_size, plain, folder), world_size)
    return [
        {
            step: values["train/loss"]
            for step, values in logged(checkpoints).items()
            if "train/loss" in values
        }
        for _, _, checkpoints in jobs
    ]


def logged(checkpoints):
    """Metrics by step of a run of `train_workers`."""
    values = json.loads((checkpoints / "values.json").read_text())
    return {int(step): found for step, found in values.items()}
