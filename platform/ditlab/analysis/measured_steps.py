"""A few real training steps in a process of their own, timed: the rates that a plan is calibrated by."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.step_runner import open_steps
from ditlab.data.processes import in_processes
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.planning.matrix_rate import matrix_rate
from ditlab.planning.meta_step import DTYPES
from ditlab.spec.experiment import Experiment, class_for

MOST_PASSES = 2
"""Micro-batches of a timed step; the rest of an accumulation is like them."""
STEPS, MOST_SECONDS = 5, 60.0
"""Timed steps after one that is not, and the time after which no more are begun."""


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
    with open_steps(experiment, home, MOST_PASSES) as runner:
        passes, updates, begin = [], [], time.perf_counter()
        for step in range(1 + STEPS):
            start = _now(runner.device)
            for number in range(runner.num_passes):
                runner.run_pass(step, number)
            middle = _now(runner.device)
            runner.update(step)
            updates.append(_now(runner.device) - middle)
            passes.append((middle - start) / runner.num_passes)
            if step and time.perf_counter() - begin > MOST_SECONDS:
                break
        rate = matrix_rate(runner.device, DTYPES[experiment.training.precision])
    return MeasuredSteps(statistics.median(passes[1:]), statistics.median(updates[1:]), rate, len(passes) - 1)


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
