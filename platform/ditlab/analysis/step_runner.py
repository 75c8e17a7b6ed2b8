"""Training steps of an experiment in this process, on one worker, without loop, checkpoints or tracking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ditlab.data.loading.transfer import send
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank, single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.engine.phase_clock import PhaseClock, phase_clock
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment
from ditlab.training.plan import plan_run


class StepRunner:
    """Steps of an experiment, pass by pass; every random number is that of a run's first steps."""

    def __init__(self, experiment: Experiment, home: Home, data: DataSplits, rank: Rank, num_passes: int) -> None:
        """Build network, loss and engine for steps of `num_passes` micro-batches."""
        self.device, self.num_passes = rank.device, num_passes
        self.clock: PhaseClock = phase_clock(rank.device)
        self._experiment, self._next = experiment, 0
        self._inputs = ModelInputs.from_experiment(experiment, data.train.columns, rank.device, home=home)
        self._objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
        self.network: nn.Module = experiment.family.build_network(experiment.model)  # type: ignore[assignment]
        self.module = TrainingModule(self.network, self._objective)
        swap = home.caches / "swap"
        self._engine = Engine(self.module, experiment, rank, experiment.micro_size, num_passes, swap, self.clock)
        self._view = data.train.fullest()

    def run_pass(self, step: int, number: int) -> None:
        """Take micro-batch `number` of a step from the store, and run its forward and backward pass."""
        size = self._experiment.micro_size
        first = (step * self.num_passes + number) * size
        with self.clock.phase("data"):
            rows = np.arange(first, first + size) % len(self._view)
            raw = {field.name: self._view.gather(field.name, rows) for field in self._inputs.fields}
            moved = {name: send(raw[name], self.device) for name in self._inputs.names_read}
            batch = self._inputs.prepare_batch(raw, self._view.columns, moved=moved)
            noise = KeyedNoise(self._experiment.seed, "train", step, number, size, self.device)
            batch |= prepare_on_host(self._objective, raw, self._view.columns, self._inputs, noise)
        self._engine.forward_backward(batch, noise, number == self.num_passes - 1)

    def update(self, step: int) -> None:
        """Apply the step's gradients."""
        with self.clock.phase("update"):
            self._engine.step(step, self._experiment.optimizer.lr)

    def take_step(self) -> None:
        """Take the next step: all passes, and the update."""
        for number in range(self.num_passes):
            self.run_pass(self._next, number)
        self.update(self._next)
        self.clock.end_step()
        self._next += 1

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


@contextmanager
def open_steps(experiment: Experiment, home: Home, most_passes: int) -> Iterator[StepRunner]:
    """Open the data of an experiment of one worker, and build its steps of at most `most_passes` micro-batches."""
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    if experiment.resources.cpus_per_worker:
        torch.set_num_threads(min(experiment.resources.cpus_per_worker, os.cpu_count() or 1))
    data = open_data(experiment.data, home, verify=False)
    plan_run(experiment, data)  # refuses a batch that is larger than the data
    with single_process(experiment.resources.gpus_per_worker > 0) as rank:
        runner = StepRunner(experiment, home, data, rank, min(experiment.accumulation, most_passes))
        try:
            yield runner
        finally:
            runner.close()
