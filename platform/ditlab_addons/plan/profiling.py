"""Training steps of one worker in this process: profiled by phase, module and operator, or timed
for a plan's rates.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
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
from ditlab.engine.phase_clock import PHASES, PhaseClock, phase_clock
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.inputs.flops import matrix_rate
from ditlab.inputs.meta_step import DTYPES
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise, derived_seed
from ditlab.inputs.stored_fields import check_stored
from ditlab.runs.cores import busy_text, thread_text, worker_threads
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import plan_run
from ditlab_models.finetuning import fine_tune

Say = Callable[[str], None]
"""Receiver of lines for people."""
MOST_PASSES = 2
"""Micro-batches of a step; the rest of an accumulation is like them, and the trace as large
again.
"""
WARM_UP = 3
LEAST_STEPS = 3
MOST_STEPS = 30
"""Steps that are not timed, as the allocator and, compiled, the graphs are new to them; and those
that are: at least, and at most."""
ENOUGH = 8.0
MOST_SECONDS = 45.0
"""Seconds of timed steps that are enough, and seconds after the first step from which on no more
are begun.
"""
STEP_PHASES = ("data", "forward", "backward", "reduce", "update")
"""Phases of a step that this profile has; `PHASES` also holds those of the loop around it."""

PREFIX = "module: "
"""Beginning of the names of ranges of modules' forward passes."""


class StepRunner:
    """Steps of an experiment, pass by pass; every random number is that of a run's first steps."""

    def __init__(
        self, experiment: Experiment, home: Home, data: DataSplits, rank: Rank, num_passes: int
    ) -> None:
        """Build network, loss and engine for steps of `num_passes` micro-batches."""
        self.device = rank.device
        self.num_passes = num_passes
        self.clock: PhaseClock = phase_clock(rank.device)
        self._experiment = experiment
        self._next = 0
        self._inputs = ModelInputs.from_experiment(
            experiment, data.train.columns, rank.device, home=home
        )
        self._objective: Any = experiment.family.build_objective(
            experiment.objective, experiment.model, data.text
        )
        self.network: nn.Module = experiment.family.build_network(experiment.model)  # type: ignore[assignment]
        seed = partial(derived_seed, experiment.seed, "lora")
        fine_tune(self.network, self._objective.modules, experiment.training, seed)
        self.module = TrainingModule(self.network, self._objective)
        self._engine = Engine(
            self.module, experiment, rank, experiment.micro_size, num_passes, self.clock
        )
        self._view = data.train.fullest()

    def run_pass(self, step: int, number: int) -> None:
        """Take micro-batch `number` of a step from the store, and run its forward and backward
        pass.
        """
        size = self._experiment.micro_size
        first = (step * self.num_passes + number) * size
        with self.clock.phase("data"):
            rows = np.arange(first, first + size) % len(self._view)
            raw = {field.name: self._view.gather(field.name, rows) for field in self._inputs.fields}
            moved = {name: send(raw[name], self.device) for name in self._inputs.names_read}
            noise = KeyedNoise(self._experiment.seed, "train", step, number, size, self.device)
            batch = self._inputs.prepare_batch(raw, self._view.columns, moved=moved, noise=noise)
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
def open_steps(experiment: Experiment, home: Home) -> Iterator[StepRunner]:
    """Open the data of an experiment of one worker, and build its steps of at most `MOST_PASSES`
    micro-batches.
    """
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    if not experiment.resources.gpus_per_worker:
        torch.set_num_threads(min(worker_threads(experiment.resources).number, os.cpu_count() or 1))
    data = open_data(experiment.data, home, verify=False)
    check_stored(experiment, data)
    plan_run(experiment, data)  # refuses a batch that is larger than the data
    num_passes = min(experiment.accumulation, MOST_PASSES)
    with (
        single_process(experiment.resources.gpus_per_worker > 0) as rank,
        closing(StepRunner(experiment, home, data, rank, num_passes)) as runner,
    ):
        yield runner


@dataclass(frozen=True)
class RangeTime:
    """An operator or a module, over all of its calls in a step."""

    name: str
    """Name of an operator, or path of a module, in which numbers of repeated blocks are `*`."""
    seconds: float
    """Time of an operator without those within it, or of a module's forward passes with those
    inside it.
    """
    num_calls: float
    flops: float
    """Floating-point operations, where torch counts them; else 0."""


@dataclass(frozen=True)
class Profile:
    """Seconds of a step, means over the profiled ones."""

    name: str
    device: str
    num_steps: int
    num_passes: int
    """Micro-batches of each."""
    phases: Mapping[str, float]
    """Data, forward, backward, reduce, update: on the clock of `time/...`, profiler included."""
    operators: Sequence[RangeTime]
    """Largest first."""
    modules: Sequence[RangeTime]
    """Largest first."""
    trace: Path

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return sum(self.phases.values())


def profile_steps(
    experiment: Experiment, home: Home, num_steps: int, trace: Path, say: Say
) -> Profile:
    """Train and profile a few steps in this process, and write torch's trace alone. Raises OSError
    where it cannot.
    """
    with open_steps(experiment, home) as runner:
        threads = ""
        if not experiment.resources.gpus_per_worker:
            threads = f", {thread_text(torch.get_num_threads())}"
        say(f"warming up: {WARM_UP} steps{threads}")
        for _ in range(WARM_UP):
            runner.take_step()
        say(f"profiling {num_steps} steps")
        on_gpu = runner.device.type == "cuda"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with (
            named_modules_recorded(runner.network),
            torch.profiler.profile(
                activities=activities,
                with_flops=True,
                # one step is recorded and dropped: the profiler's own start took 2 s of it
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=num_steps, repeat=1),
            ) as profiler,
        ):
            for number in range(num_steps + 1):
                runner.take_step()
                if number == num_steps:
                    seconds = runner.clock.read_rest().seconds
                profiler.step()
                if number == 0:
                    runner.clock.read_rest()
                    runner.clock.restart()
        profiler.export_chrome_trace(str(trace))
        num_passes = runner.num_passes
        device = str(runner.device)
    busy = "" if on_gpu else busy_text()
    if busy:
        say(f"this machine was busy: {busy}; the steps are slower than on an idle one")
    phases = {
        name: each / num_steps
        for name, each in zip(PHASES, seconds, strict=True)
        if name in STEP_PHASES
    }
    operators, modules = range_times(profiler.key_averages(), on_gpu, num_steps)
    return Profile(
        experiment.name, device, num_steps, num_passes, phases, operators, modules, trace
    )


def range_times(
    averages: Iterable[Any], on_gpu: bool, num_steps: int
) -> tuple[list[RangeTime], list[RangeTime]]:
    """Return operators and modules of torch's `key_averages`, a step, largest first: the host's
    seconds on a CPU, the device's on a GPU."""
    device = "device" if on_gpu else "cpu"
    operators = []
    modules = []
    for each in averages:
        is_module = each.key.startswith(PREFIX)
        microseconds = getattr(
            each, f"{device}_time_total" if is_module else f"self_{device}_time_total"
        )
        name = each.key.removeprefix(PREFIX).removeprefix("aten::")
        found = RangeTime(
            name, microseconds / 1e6 / num_steps, each.count / num_steps, each.flops / num_steps
        )
        if is_module:
            modules.append(found)
        elif microseconds and not name.startswith("ProfilerStep"):
            operators.append(found)
    for ranges in (operators, modules):
        ranges.sort(key=lambda each: -each.seconds)
    return operators, modules


@contextmanager
def named_modules_recorded(network: nn.Module) -> Iterator[None]:
    """Record a range for each forward pass of each submodule, inside."""
    opened: list[Any] = []

    def begin(path: str, *_: Any) -> None:
        opened.append(torch.profiler.record_function(f"{PREFIX}{path}"))
        opened[-1].__enter__()

    def end(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    hooks = []
    for name, module in network.named_modules():
        if name:
            path = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
            hooks += [
                module.register_forward_pre_hook(partial(begin, path)),
                module.register_forward_hook(end),
            ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
    threads: int
    """Threads of the worker's CPU."""
    busy: str
    """Cores that others kept busy meanwhile, in words; empty on an idle machine and with a GPU."""


def measure_steps(experiment: Experiment, home: Home) -> MeasuredSteps:
    """Time steps of one worker in another process. Raises UserError for no GPU or too little
    memory, RunFailed.
    """
    if experiment.resources.gpus_per_worker and not torch.cuda.is_available():
        raise UserError(
            "--measure takes real steps, and this machine has no GPU to take them on; leave "
            "--measure out, or plan for --gpu cpu."
        )
    try:
        (found,) = in_processes(
            _measure, [(experiment.to_dict(), str(home.root))], 1, "measures steps"
        )
    except UserError as error:
        raise UserError(
            "--measure: the process that took the steps was killed, as happens where memory "
            "runs out; set a smaller batch.micro, or leave --measure out."
        ) from error
    if isinstance(found, str):
        raise RunFailed(f"--measure: the steps failed: {found}")
    return found


def _measure(task: tuple[dict[str, Any], str]) -> MeasuredSteps | str:
    """Time steps in this process. Returns the reason where they fail: not every exception can be
    sent.
    """
    spec, root = task
    # by step: seconds of a micro-batch, as a mean, and of the update
    times: list[tuple[float, float]] = []
    try:
        experiment = class_for(spec).model_validate(spec)
        with open_steps(experiment, Home(Path(root))) as runner:
            device = runner.device
            seconds = 0.0
            begin = 0.0
            while len(times) < WARM_UP + LEAST_STEPS or (
                seconds < ENOUGH and len(times) < WARM_UP + MOST_STEPS
            ):
                start = _now(device)
                # the first step compiles
                if not len(times) > 1:
                    begin = start
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
    busy = "" if experiment.resources.gpus_per_worker else busy_text()
    return MeasuredSteps(passes, updates, rate, len(timed), torch.get_num_threads(), busy)


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
