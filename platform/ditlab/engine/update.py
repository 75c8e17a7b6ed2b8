"""Update of a step: its clipping, and its omission where it is not finite, decided on the device.

ZClip is adaptive clipping by statistics of earlier gradient norms (Kumar et al. 2025,
arXiv:2504.02507).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ditlab.spec.optimization import ClipSpec, NormClip, RatioZClip, ZClip

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_
PREFIX = "clip."
STATISTICS = ("count", "mean", "variance")


class Update:
    """Scale of the gradient in the next optimiser step, and whether the update is applied at
    all.
    """

    def __init__(self, adam: torch.optim.Optimizer, clip: ClipSpec) -> None:
        self._adam: Any = adam
        self._max_norm: float | None = None
        self._statistics: NormStatistics | None = None
        if isinstance(clip, NormClip):
            self._max_norm = clip.max_norm
        elif isinstance(clip, ZClip):
            self._statistics = ZScore(clip)
        elif isinstance(clip, RatioZClip):
            self._statistics = Ratio(clip)

    def prepare(self, norm: Tensor, healthy: Tensor | None) -> None:
        """Set up Adam's next step from the whole gradient's norm, 0-dim, equal on all workers.

        The update is skipped where the norm is not finite, or `healthy` is false.
        """
        applied = norm.isfinite()
        if healthy is not None:
            applied = applied & healthy.to(norm.device)
        self._adam.found_inf = 1 - applied.float()
        limit: float | Tensor | None = self._max_norm
        if self._statistics is not None:
            limit = self._statistics.limit(norm, applied).to(norm.dtype)
        if limit is None:
            self._adam.grad_scale = None
        else:
            self._adam.grad_scale = ((norm + TINY) / limit).clamp(min=1.0)

    def weight(self, share: float, device: torch.device) -> Tensor:
        """Return `share` as a tensor; 0 where this step's update is skipped."""
        return ((1 - self._adam.found_inf) * share).to(device)

    def state(self) -> dict[str, float]:
        """Return the statistics of adaptive clipping; nothing for other clipping."""
        return self._statistics.state() if self._statistics else {}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load the statistics of adaptive clipping."""
        if self._statistics:
            self._statistics.load(scalars)


class NormStatistics:
    """Mean and variance of earlier gradient norms, and the limit that they set for the next one.

    They stay on the norms' device, in float64, so that nothing waits for a GPU.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._values = torch.zeros(3, dtype=torch.float64)
        """Count, mean and variance."""

    def limit(self, norm: Tensor, applied: Tensor) -> Tensor:
        """Return the norm to clip a gradient of this norm to, 0-dim float64, infinite for none;
        count the norm where `applied`.
        """
        self._values = self._values.to(norm.device)
        limit, values = self._next(norm.double())
        self._values = torch.where(applied, torch.stack(values), self._values)
        return limit

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the limit, and count, mean and variance after this norm."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Return the numbers that the next limit depends on."""
        return {
            PREFIX + name: value
            for name, value in zip(STATISTICS, self._values.tolist(), strict=True)
        }

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load a saved state; statistics start over where there is none, as after a change of
        clipping.
        """
        self._values = self._values.new_tensor(
            [scalars.get(PREFIX + name, 0.0) for name in STATISTICS]
        )


class ZScore(NormStatistics):
    """Published form of ZClip, with reciprocal clipping: the further out a norm, the closer to the
    mean its limit.
    """

    _spec: ZClip

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        count, mean, variance = self._values
        spec = self._spec
        max_norm = math.inf if spec.max_norm is None else spec.max_norm
        bound = torch.full_like(norm, max_norm)
        away = norm - mean
        # Running mean and population variance of the warm-up's norms (Welford 1962).
        first_mean = mean + away / (count + 1)
        first_variance = variance + (away * (norm - first_mean) - variance) / (count + 1)
        # mean + z^2 sigma / ((norm - mean) / sigma), without a division by sigma.
        is_far = away > spec.z * variance.sqrt()
        limit = torch.where(is_far, mean + spec.z**2 * variance / away, math.inf)
        seen = torch.minimum(norm, limit)
        next_mean = mean + (1 - spec.decay) * (seen - mean)
        next_variance = variance + (1 - spec.decay) * ((seen - next_mean).square() - variance)
        warms = count < spec.warmup
        values = [
            torch.where(warms, count + 1, count),
            torch.where(warms, first_mean, next_mean),
            torch.where(warms, first_variance, next_variance),
        ]
        return torch.where(warms, bound, torch.minimum(limit, bound)), values


class Ratio(NormStatistics):
    """Limit at a multiple of the moving average of clipped norms; the first norm starts the
    average, unclipped.
    """

    _spec: RatioZClip

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        count, mean, variance = self._values
        has_begun = count > 0
        limit = torch.where(has_begun, self._spec.ratio * mean, math.inf)
        moved = mean + (1 - self._spec.decay) * (torch.minimum(norm, limit) - mean)
        return limit, [torch.ones_like(count), torch.where(has_begun, moved, norm), variance]
