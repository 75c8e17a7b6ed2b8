"""Utilisation: operations of a step over what matrix products on the same devices would do in its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ditlab.engine.distributed import Rank
from ditlab.training.plan import TrainingRun

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepWork:
    """Operations of one step, and the rate that they are compared with."""

    model: float
    """Operations of the forward and backward passes of the global batch, without recomputation."""
    hardware: float
    """Operations including those that activation checkpointing computes a second time."""
    rate: float
    """Operations a second of a matrix product, of all workers together."""

    def utilisation(self, step_seconds: float) -> dict[str, float]:
        """Return `perf/mfu` (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) and `perf/hfu` of a step's time."""
        done = self.rate * step_seconds
        return {"perf/mfu": self.model / done, "perf/hfu": self.hardware / done} if done > 0 else {}


def step_work(run: TrainingRun, rank: Rank, warn: Callable[[str], None]) -> StepWork | None:
    """Count a step's operations and measure the rate of a matrix product: about half a second, once a run.

    None, and a warning, for a network whose operations cannot be counted.
    """
    from ditlab.inputs.data_shape import data_shape
    from ditlab.planning.flops import step_flops
    from ditlab.planning.matrix_rate import matrix_rate

    experiment = run.experiment
    try:
        flops = step_flops(experiment, data_shape(experiment, run.data))
    except Exception as error:  # a family of another package may do on the meta device what it does not bear
        warn(f"perf/mfu is left out: the operations of {experiment.model.family} cannot be counted ({error}).")
        return None
    rate = matrix_rate(rank.device, _TYPES[experiment.training.precision])
    return StepWork(flops.model, flops.hardware, rate * rank.world_size)
