"""Gradient clipping, and the omission of a non-finite update, decided on the device.

torch's fused AdamW divides gradients by `grad_scale` and, where `found_inf` is 1, touches neither weights, moments nor
its step count (torch.amp.GradScaler uses them so). Both are tensors, so nothing waits for a GPU.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab.engine.clipping import NormStatistics, statistics
from ditlab.spec.optimisation.clipping import AdaptiveClip, ClipSpec, NormClip

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Update:
    """Scale of the gradient in the next optimiser step, and whether the update is applied at all."""

    def __init__(self, adam: torch.optim.Optimizer, clip: ClipSpec) -> None:
        self._adam: Any = adam
        self._max_norm = clip.max_norm if isinstance(clip, NormClip) else None
        self._statistics: NormStatistics | None = statistics(clip) if isinstance(clip, AdaptiveClip) else None

    def prepare(self, norm: Tensor, healthy: Tensor | None) -> None:
        """Set up Adam's next step from the whole gradient's norm, 0-dim, equal on all workers.

        The update is left out where the norm is not finite, or `healthy` is false.
        """
        applied = norm.isfinite()
        if healthy is not None:
            applied = applied & healthy.to(norm.device)
        self._adam.found_inf = 1 - applied.float()
        limit = self._max_norm
        if self._statistics is not None:
            limit = self._statistics.limit(float(norm)) if bool(applied) else math.inf
        self._adam.grad_scale = None if limit is None else ((norm + TINY) / limit).clamp(min=1.0)

    def weight(self, share: float, device: torch.device) -> Tensor:
        """Return `share` as a tensor; 0 where this step's update is left out."""
        return ((1 - self._adam.found_inf) * share).to(device)

    def state(self) -> dict[str, float]:
        """Return the statistics of adaptive clipping; nothing for other clipping."""
        return self._statistics.state() if self._statistics else {}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load the statistics of adaptive clipping."""
        if self._statistics:
            self._statistics.load(scalars)
