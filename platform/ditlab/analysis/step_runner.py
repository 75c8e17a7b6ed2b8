"""Training steps of an experiment in this process, on one worker; a few timed ones give the rates of a plan."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ditlab.data.loading.transfer import send
from ditlab.data.processes import in_processes
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank, single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.engine.phase_clock import PhaseClock, phase_clock
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab.planning.flops import matrix_rate
from ditlab.planning.meta_step import DTYPES
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import plan_run

MOST_PASSES = 2
"""Micro-batches of a timed step; the rest of an accumulation is like them."""
WARM_UP, LEAST_STEPS, MOST_STEPS = 3, 3, 30
"""Steps that are not timed, as the allocator and, compiled, the graphs are new to them; and those that are: at least,
and at most."""
ENOUGH, MOST_SECONDS = 8.0, 45.0
"""Seconds of timed steps that are enough, and seconds after the first step from which on no more are begun."""


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


@dataclass(frozen=True)
class MeasuredSteps:
    """Times of one worker's steps."""

    passes: float
    """Seconds of a micro-batch: its data taken from the store, forward and backward pass."""
    update: float
    """Seconds of the update."""
    matrix_rate: float
    """FLOP/s of a large matrix product in the same process."""
    steps: int
    """Steps that were timed."""


def measure_steps(experiment: Experiment, home: Home) -> MeasuredSteps:
    """Time steps of one worker in another process. Raises UserError for no GPU or too little memory, RunFailed."""
    if experiment.resources.gpus_per_worker and not torch.cuda.is_available():
        raise UserError(
            "--measure takes real steps, and this machine has no GPU to take them on; leave --measure out, or plan for "
            "--gpu cpu."
        )
    try:
        (found,) = in_processes(_measure, [(experiment.to_dict(), str(home.root))], 1, "measures steps")
    except UserError as error:
        raise UserError(
            "--measure: the process that took the steps was killed, as happens where memory runs out; set a smaller "
            "batch.micro, or leave --measure out."
        ) from error
    if isinstance(found, str):
        raise RunFailed(f"--measure: the steps failed: {found}")
    return found


def _measure(task: tuple[dict[str, Any], str]) -> MeasuredSteps | str:
    """Time steps in this process. Returns the reason where they fail: not every exception can be sent."""
    spec, root = task
    times: list[tuple[float, float]] = []  # by step: seconds of a micro-batch, as a mean, and of the update
    try:
        experiment = class_for(spec).model_validate(spec)
        with open_steps(experiment, Home(Path(root)), MOST_PASSES) as runner:
            device, seconds, begin = runner.device, 0.0, 0.0
            while len(times) < WARM_UP + LEAST_STEPS or (seconds < ENOUGH and len(times) < WARM_UP + MOST_STEPS):
                start = _now(device)
                begin = begin if len(times) > 1 else start  # the first step compiles
                if start - begin > MOST_SECONDS:
                    break
                for number in range(runner.num_passes):
                    runner.run_pass(len(times), number)
                middle = _now(device)
                runner.update(len(times))
                end = _now(device)
                seconds += end - start if len(times) >= WARM_UP else 0.0
                times.append(((middle - start) / runner.num_passes, end - middle))
            rate = matrix_rate(device, DTYPES[experiment.training.precision])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    timed = times[WARM_UP:] or times[1:] or times
    passes, updates = (statistics.median(each) for each in zip(*timed, strict=True))
    return MeasuredSteps(passes, updates, rate, len(timed))


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
