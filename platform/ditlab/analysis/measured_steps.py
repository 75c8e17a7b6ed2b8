"""A few real training steps in a process of their own, timed: the rates that a plan is calibrated by."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.step_runner import StepRunner, open_steps
from ditlab.data.processes import in_processes
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.planning.matrix_rate import matrix_rate
from ditlab.planning.meta_step import DTYPES
from ditlab.spec.experiment import Experiment, class_for

MOST_PASSES = 2
"""Micro-batches of a timed step; the rest of an accumulation is like them."""
WARM_UP, LEAST_STEPS, MOST_STEPS = 3, 3, 30
"""Steps that are not timed, as the allocator and, compiled, the graphs are new to them; and those that are: at least,
and at most."""
ENOUGH, MOST_SECONDS = 8.0, 45.0
"""Seconds of timed steps that are enough, and seconds after the first step from which on no more are begun."""


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
    """Train a few steps of an experiment on one worker, in another process, and time them. Nothing of it is kept.

    Raises:
        UserError: the machine has no GPU for an experiment that needs one, or too little memory.
    """
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
    try:
        return _timed_steps(class_for(spec).model_validate(spec), Home(Path(root)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _timed_steps(experiment: Experiment, home: Home) -> MeasuredSteps:
    times: list[_StepTime] = []
    with open_steps(experiment, home, MOST_PASSES) as runner:
        first = _step_time(runner, 0)
        begin = _now(runner.device)
        while not _is_enough(times, _now(runner.device) - begin):
            times.append(_step_time(runner, 1 + len(times)))
        rate = matrix_rate(runner.device, DTYPES[experiment.training.precision])
    timed = times[WARM_UP - 1 :] or times or [first]
    passes = statistics.median(each.passes for each in timed)
    return MeasuredSteps(passes, statistics.median(each.update for each in timed), rate, len(timed))


@dataclass(frozen=True)
class _StepTime:
    """Seconds of one step."""

    passes: float
    """Mean of the micro-batches."""
    update: float


def _step_time(runner: StepRunner, step: int) -> _StepTime:
    start = _now(runner.device)
    for number in range(runner.num_passes):
        runner.run_pass(step, number)
    middle = _now(runner.device)
    runner.update(step)
    return _StepTime((middle - start) / runner.num_passes, _now(runner.device) - middle)


def _is_enough(times: Sequence[_StepTime], seconds: float) -> bool:
    """Return True once enough steps behind the first one are timed, or too long has passed for more."""
    timed = times[WARM_UP - 1 :]
    if seconds > MOST_SECONDS or len(timed) >= MOST_STEPS:
        return True
    return len(timed) >= LEAST_STEPS and sum(each.passes + each.update for each in timed) >= ENOUGH


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
