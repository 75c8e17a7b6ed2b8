"""Gradient clipping, and the omission of a non-finite update, decided on the device.

ZClip is adaptive clipping by statistics of earlier gradient norms (Kumar et al. 2025, arXiv:2504.02507).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab.spec.optimization import AdaptiveClip, ClipSpec, NormClip, RatioZClip, ZClip

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_
PREFIX = "clip."


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


class NormStatistics:
    """Mean and variance of earlier gradient norms, and the limit that they set for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def limit(self, norm: float) -> float:
        """Return the norm to clip a gradient of this finite norm to, infinite for none; then count the norm."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Return the numbers that the next limit depends on."""
        return {f"{PREFIX}{name}": float(value) for name, value in vars(self).items() if not name.startswith("_")}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load a saved state; statistics start over where there is none, as after a change of clipping."""
        self.count = int(scalars.get(f"{PREFIX}count", 0))
        self.mean = scalars.get(f"{PREFIX}mean", 0.0)
        self.variance = scalars.get(f"{PREFIX}variance", 0.0)


class ZScore(NormStatistics):
    """Published form of ZClip, with reciprocal clipping: the further out a norm, the closer to the mean its limit."""

    def __init__(self, spec: ZClip) -> None:
        super().__init__()
        self._spec = spec

    def limit(self, norm: float) -> float:
        spec = self._spec
        bound = math.inf if spec.max_norm is None else spec.max_norm
        if self.count < spec.warmup:
            # Running mean and population variance of the warm-up's norms (Welford 1962).
            self.count += 1
            away = norm - self.mean
            self.mean += away / self.count
            self.variance += (away * (norm - self.mean) - self.variance) / self.count
            return bound
        away, limit = norm - self.mean, math.inf
        if away > spec.z * math.sqrt(self.variance):
            # mean + z^2 sigma / ((norm - mean) / sigma), without a division by sigma.
            limit = self.mean + spec.z**2 * self.variance / away
        seen = min(norm, limit)
        self.mean += (1 - spec.decay) * (seen - self.mean)
        self.variance += (1 - spec.decay) * ((seen - self.mean) ** 2 - self.variance)
        return min(limit, bound)


class Ratio(NormStatistics):
    """Limit at a multiple of the moving average of clipped norms; the first norm starts the average, unclipped."""

    def __init__(self, spec: RatioZClip) -> None:
        super().__init__()
        self._spec = spec

    def limit(self, norm: float) -> float:
        limit = self._spec.ratio * self.mean if self.count else math.inf
        self.mean += (1 - self._spec.decay) * (min(norm, limit) - self.mean) if self.count else norm
        self.count = 1
        return limit


def statistics(spec: AdaptiveClip) -> NormStatistics:
    """Return fresh statistics for a clipping spec."""
    return ZScore(spec) if isinstance(spec, ZClip) else Ratio(spec)
