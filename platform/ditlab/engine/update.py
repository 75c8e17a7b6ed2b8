"""Update of a step: its clipping, its omission where it is not finite, decided on the device, and its norms.

ZClip is adaptive clipping by statistics of earlier gradient norms (Kumar et al. 2025, arXiv:2504.02507).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from ditlab.engine.deepspeed_internals import Partitions
from ditlab.spec.optimization import AdaptiveClip, ClipSpec, NormClip, RatioZClip, ZClip

TINY = 1e-6  # as in torch.nn.utils.clip_grad_norm_
PREFIX = "clip."
STATISTICS = ("count", "mean", "variance")


class Update:
    """Scale of the gradient in the next optimiser step, and whether the update is applied at all."""

    def __init__(self, adam: torch.optim.Optimizer, clip: ClipSpec) -> None:
        self._adam: Any = adam
        self._max_norm = clip.max_norm if isinstance(clip, NormClip) else None
        self._statistics: NormStatistics | None = None
        if isinstance(clip, AdaptiveClip):
            self._statistics = ZScore(clip) if isinstance(clip, ZClip) else Ratio(clip)

    def prepare(self, norm: Tensor, healthy: Tensor | None) -> None:
        """Set up Adam's next step from the whole gradient's norm, 0-dim, equal on all workers.

        The update is left out where the norm is not finite, or `healthy` is false.
        """
        applied = norm.isfinite()
        if healthy is not None:
            applied = applied & healthy.to(norm.device)
        self._adam.found_inf = 1 - applied.float()
        limit: float | Tensor | None = self._max_norm
        if self._statistics is not None:
            limit = self._statistics.limit(norm, applied).to(norm.dtype)
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
    """Mean and variance of earlier gradient norms, and the limit that they set for the next one.

    They stay on the norms' device, in float64, so that nothing waits for a GPU.
    """

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self._values = torch.zeros(3, dtype=torch.float64)
        """Count, mean and variance."""

    def limit(self, norm: Tensor, applied: Tensor) -> Tensor:
        """Return the norm to clip a gradient of this norm to, 0-dim float64, infinite for none; count the norm where
        `applied`."""
        self._values = self._values.to(norm.device)
        limit, values = self._next(norm.double())
        self._values = torch.where(applied, torch.stack(values), self._values)
        return limit

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the limit, and count, mean and variance after this norm."""
        raise NotImplementedError

    def state(self) -> dict[str, float]:
        """Return the numbers that the next limit depends on."""
        return {PREFIX + name: value for name, value in zip(STATISTICS, self._values.tolist(), strict=True)}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Load a saved state; statistics start over where there is none, as after a change of clipping."""
        self._values = self._values.new_tensor([scalars.get(PREFIX + name, 0.0) for name in STATISTICS])


class ZScore(NormStatistics):
    """Published form of ZClip, with reciprocal clipping: the further out a norm, the closer to the mean its limit."""

    _spec: ZClip

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        count, mean, variance = self._values
        spec = self._spec
        bound = torch.full_like(norm, math.inf if spec.max_norm is None else spec.max_norm)
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
    """Limit at a multiple of the moving average of clipped norms; the first norm starts the average, unclipped."""

    _spec: RatioZClip

    def _next(self, norm: Tensor) -> tuple[Tensor, list[Tensor]]:
        count, mean, variance = self._values
        has_begun = count > 0
        limit = torch.where(has_begun, self._spec.ratio * mean, math.inf)
        moved = mean + (1 - self._spec.decay) * (torch.minimum(norm, limit) - mean)
        return limit, [torch.ones_like(count), torch.where(has_begun, moved, norm), variance]


@dataclass(frozen=True)
class ParameterNorms:
    """L2 norms of one parameter, over all workers' parts of it."""

    gradient: float
    """Norm before clipping."""
    update: float
    """Norm of the change of the float32 weights."""
    weight: float
    """Norm of the float32 weights before the update."""

    @property
    def ratio(self) -> float | None:
        """Norm of the update over that of the weights; None for weights of zero."""
        return self.update / self.weight if self.weight else None


class UpdateNorms:
    """Norms of the step that is taken inside `watching`; costs a copy of the weights that it updates.

    They are taken around the optimiser's own step. There every ZeRO stage and offload holds the reduced, unscaled and
    not yet clipped gradient beside the float32 weights.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._names = sorted({name for members in partitions.members for name in members})
        self._squares = torch.zeros((len(self._names), 3), dtype=torch.float64)
        self._before: dict[int, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure what the optimiser does inside, in one step."""
        adam = self._partitions.adam
        hooks = [adam.register_step_pre_hook(self._begin), adam.register_step_post_hook(self._end)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._before.clear()

    def read(self, device: torch.device) -> dict[str, ParameterNorms]:
        """Return the norms by parameter, alike on all workers. All must call.

        All are 0 where the optimiser took no step, as where the scale of float16 overflows.
        """
        squares = self._squares.to(device)
        if self._partitions.stage > 0 and distributed.get_world_size() > 1:  # workers hold different parts
            distributed.all_reduce(squares)
        rows = squares.sqrt().tolist()
        return {name: ParameterNorms(*row) for name, row in zip(self._names, rows, strict=True)}

    def _begin(self, *_: Any) -> None:
        """Keep the weights that have a gradient, as ZeRO-3 updates them group by group."""
        for index, flat in enumerate(self._partitions.flats):
            if flat.grad is not None:
                self._before[index] = flat.detach().clone()
                self._add(index, 0, flat.grad.contiguous())
                self._add(index, 2, self._before[index])

    def _end(self, *_: Any) -> None:
        for index, before in self._before.items():
            self._add(index, 1, self._partitions.flats[index].detach() - before)
        self._before = {}

    def _add(self, index: int, column: int, flat: Tensor) -> None:
        for part in self._partitions.slices_of[index]:
            square = torch.linalg.vector_norm(part.of(flat), dtype=torch.float64).square()
            self._squares[self._names.index(part.name), column] += square.cpu()
