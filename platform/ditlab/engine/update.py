"""Between gradients and Adam: clip them, or leave the whole update out, decided on the device.

torch's fused AdamW divides gradients by `grad_scale` and, where `found_inf` is 1, touches neither weights, moments nor
its step count (what torch.amp.GradScaler uses them for). Both are tensors, so nothing waits for a GPU to know.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab.engine.clipping import NormStatistics, statistics
from ditlab.spec.optimisation import AdaptiveClip, ClipSpec, NormClip

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Update:
    """Says, before each optimiser step, how its gradient is scaled and whether it is applied at all."""

    def __init__(self, adam: torch.optim.Optimizer, clip: ClipSpec) -> None:
        self._adam: Any = adam
        self._max_norm = clip.max_norm if isinstance(clip, NormClip) else None
        self._statistics: NormStatistics | None = statistics(clip) if isinstance(clip, AdaptiveClip) else None

    def prepare(self, norm: Tensor, healthy: Tensor | None) -> None:
        """`norm`: of the whole gradient, 0-dim, alike on all workers. Not finite, or `healthy` false: no update."""
        applied = norm.isfinite()
        if healthy is not None:
            applied = applied & healthy.to(norm.device)
        self._adam.found_inf = 1 - applied.float()
        limit = self._max_norm
        if self._statistics is not None:
            limit = self._statistics.limit(float(norm)) if bool(applied) else math.inf
        self._adam.grad_scale = None if limit is None else ((norm + TINY) / limit).clamp(min=1.0)

    def weight(self, share: float, device: torch.device) -> Tensor:
        """`share` as a tensor; 0 where this step's update is left out."""
        return ((1 - self._adam.found_inf) * share).to(device)

    def state(self) -> dict[str, float]:
        return self._statistics.state() if self._statistics else {}

    def load(self, scalars: Mapping[str, float]) -> None:
        if self._statistics:
            self._statistics.load(scalars)
