"""Floating-point operations of a step, and the rate at which this device does those of a large
matrix product.

Operations are counted on the meta device over the plain network and its loss.
"""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ditlab.inputs.meta_step import DataShape, MetaStep
from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class StepFlops:
    """Floating-point operations of the global batch of one optimiser step, over all workers."""

    forward: int
    """Forward passes."""
    backward: int
    """Backward passes, without recomputation."""
    recomputed: int
    """Operations that activation checkpointing adds in the backward pass; 0 without it."""

    @property
    def model(self) -> int:
        """Operations that the model needs: `forward` and `backward`."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Operations that are done: `model` and `recomputed`."""
        return self.model + self.recomputed


def step_flops(experiment: Experiment, data: DataShape | None = None) -> StepFlops:
    """Count the operations of one optimiser step: those of a micro-batch, times their number.
    `data`: sizes that the spec does not give; None assumes the largest. Raises ValueError for a
    loss that does not fit its model."""
    data = data or DataShape()
    num = experiment.num_micro
    forward, backward = _count(experiment, data, recomputes=False)
    recomputed = 0
    if experiment.engine.activation_checkpointing:
        recomputed = _count(experiment, data, recomputes=True)[1] - backward
    return StepFlops(forward * num, backward * num, recomputed * num)


ALSO_COUNTED: dict[Any, Any] = {
    torch.ops.aten.addmm_: lambda _, rows, columns, *__, **___: 2 * rows[0] * rows[1] * columns[1]
}
"""Products that torch's counter does not count: the in-place one gave 15% of the language model's
published size.
"""
_counts: dict[str, tuple[int, int]] = {}


def _count(experiment: Experiment, data: DataShape, recomputes: bool) -> tuple[int, int]:
    """Count forward and backward pass of one micro-batch, once a process; what is recomputed counts
    as backward.
    """
    size = experiment.micro_size
    key = data.step_key(experiment, size, recomputes)
    if key not in _counts:
        step = MetaStep(experiment, data, recomputes=recomputes)
        counter = FlopCounterMode(display=False, custom_mapping=ALSO_COUNTED)
        with counter, step.reading(size):
            total = step.loss(step.batch(size))
            forward = counter.get_total_flops()
            total.backward()
        _counts[key] = forward, counter.get_total_flops() - forward
    return _counts[key]


@cache
def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a square matrix product, with the threads that this
    process computes with. 2048 x 2048 on a CPU and 8192 x 8192 on CUDA, or the first size of which
    one takes 0.2 s; the fastest of three."""
    noise = torch.Generator(device).manual_seed(0)  # its own: the process's is the training's
    size = 128
    largest = 8192 if device.type == "cuda" else 2048
    seconds = 0.0
    while size < largest and seconds * 8 <= 0.2:
        size *= 2
        # Random values: on GPUs the power that zeros would save becomes speed that no training has.
        a, b = (
            torch.randn(size, size, device=device, dtype=dtype, generator=noise) for _ in range(2)
        )
        product = partial(_multiply, a, b, torch.empty_like(a))
        with torch.no_grad():
            seconds = min(timeit.repeat(product, number=1, repeat=4)[1:])
    return 2 * size**3 / seconds


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
