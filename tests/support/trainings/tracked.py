"""Bytes of a worker's live tensors in real training steps on the CPU, as a tracker counts them."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ditlab.data.splits import open_data
from ditlab.engine.distributed import single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import class_for
from ditlab_addons.plan.pass_memory import LiveBytes
from ditlab_models.finetuning import fine_tune
from support.garbage import exempt_imports
from support.trainings.groups import joined, run_group


@dataclass(frozen=True)
class TrackedStep:
    """Bytes alive in a step of one worker."""

    state: int
    """Between two steps."""
    passes: int
    """At the peak of its forward and backward passes."""
    update: int
    """At the peak of its update."""
    parameters: int
    """Bytes of the parameters that the network computes with."""
    optimizer: int
    """Of master weights and the optimiser's state, as far as they are this worker's."""
    average: int
    """Of the moving average, as far as it is this worker's."""

    @property
    def peak(self):
        """Most bytes alive at once."""
        return max(self.passes, self.update)


def track_step(experiment, home):
    """Train three steps in this process, and return the last one's bytes."""
    with single_process(use_gpu=False) as rank:
        tracked = _track(experiment, home, rank)
    exempt_imports()
    return tracked


def track_workers(experiments, home, world_size):
    """Train each experiment for three steps on `world_size` processes, and return the first
    worker's bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        specs = [each.to_dict() for each in experiments]
        run_group(_body, (world_size, specs, str(home), folder), world_size)
        return [TrackedStep(**each) for each in torch.load(Path(folder, "0.pt"))]


def _body(rank, world_size, specs, home, folder):
    with joined(rank, world_size, folder) as place:
        found = [
            vars(_track(class_for(spec).model_validate(spec), Path(home), place)) for spec in specs
        ]
        torch.save(found, Path(folder, f"{rank}.pt"))


def _track(experiment, home, rank):
    data = open_data(experiment.data, Home(home))
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, rank.device)
    tracker = LiveBytes("cpu")
    with tracker:
        engine = build_engine(experiment, data, rank)
        for step in range(3):
            state = tracker.live
            tracker.peak = tracker.live
            for number in range(experiment.accumulation):
                run_pass(engine, experiment, data, inputs, step, number)
            passes = tracker.peak
            tracker.peak = tracker.live
            engine.step(step, 1e-3)
    whole = [engine.partitions.tensors(index) for index in range(len(engine.partitions.flats))]
    weights = [getattr(each, "ds_tensor", each) for each in engine._module.parameters()]
    parameters = _distinct_bytes(weights)
    optimizer = _distinct_bytes([each for tensors in whole for each in tensors.values()])
    if engine.stage == 0:  # whose master weights are the parameters
        optimizer -= parameters
    average = sum(
        each.nbytes
        for index in range(len(whole))
        for each in engine.averages.tensors(index).values()
    )
    engine.close()
    return TrackedStep(state, passes, tracker.peak, parameters, optimizer, average)


def build_engine(experiment, data, rank):
    """The engine of a new network and its loss."""
    objective = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
    network = experiment.family.build_network(experiment.model)
    fine_tune(network, objective.modules, experiment.training, len)
    return Engine(TrainingModule(network, objective), experiment, rank)


def _distinct_bytes(tensors):
    """Bytes of the storages behind tensors."""
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors
    }
    return sum(storages.values())


def run_pass(engine, experiment, data, inputs, step, number):
    """Run forward and backward pass of a micro-batch of a data set's first rows."""
    size = experiment.micro_size
    rows = np.arange(number * size, (number + 1) * size)
    raw = {field.name: data.train.gather(field.name, rows) for field in inputs.fields}
    batch = inputs.prepare_batch(raw, data.train.columns)
    noise = KeyedNoise(0, "train", step, number, size, torch.device("cpu"))
    engine.forward_backward(batch, noise, number == experiment.accumulation - 1)


def first_step(spec, home):
    """Build an engine in a fresh process, and return its first micro-batch's passes."""
    experiment = class_for(spec).model_validate(spec)
    data = open_data(experiment.data, Home(home))
    group = single_process(use_gpu=False)
    rank = group.__enter__()
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, rank.device)
    engine = build_engine(experiment, data, rank)

    def step():
        run_pass(engine, experiment, data, inputs, 0, 0)
        group.__exit__(None, None, None)

    return step
