"""Norm of the whole gradient, wherever ZeRO keeps its parts; no GPU waits for it unless state is offloaded.

DeepSpeed's own norm waits for the GPU at every step of stage 3, so it is taken out there. Touches DeepSpeed's private
names; `tests/ditlab/engine` fails when they move.
"""

import math
from typing import Any

import torch
from torch import Tensor, distributed


class GradientNorm:
    """Norm of the gradient, measured between the last backward pass of a step and its update."""

    def __init__(self, engine: Any, stage: int, offloaded: bool, world_size: int) -> None:
        self._engine, self._optimizer = engine, engine.optimizer
        self._stage, self._offloaded, self._world_size = stage, offloaded, world_size
        if stage == 3:
            self._norms, unmeasured = self._optimizer._get_norm_groups, lambda: [torch.zeros(())]
            self._optimizer._get_norm_groups = unmeasured
        elif offloaded:
            self._norms = lambda scaled=self._optimizer.scaled_global_norm: [scaled()]
            self._optimizer.scaled_global_norm = lambda: torch.zeros(())

    def measure(self) -> Tensor:
        """Return the L2 norm, 0-dim, float32, equal on all workers; NaN or infinite where any part of it is."""
        scale = self._optimizer.loss_scale if self._engine.fp16_enabled() else 1.0
        if self._offloaded:
            # Measured by DeepSpeed on its way to the CPU. It returns -1 for a gradient that is not finite.
            norms = torch.stack([norm.float().cpu() for norm in self._norms()])
            return torch.where(norms < 0, math.nan, norms).norm() / scale
        if self._stage == 0:
            parts = [each.grad for each in self._engine.module.parameters() if each.grad is not None]
        else:
            parts = [part for flat in self._optimizer.averaged_gradients.values() for part in flat]
        norm = torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float32)).norm()
        if self._stage and self._world_size > 1:
            square = norm.square()
            distributed.all_reduce(square)
            norm = square.sqrt()
        return norm / scale if scale != 1.0 else norm
