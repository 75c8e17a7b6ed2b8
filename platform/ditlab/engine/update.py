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

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self.count, self.mean, self.variance = 0, 0.0, 0.0

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

    _spec: ZClip

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

    _spec: RatioZClip

    def limit(self, norm: float) -> float:
        limit = self._spec.ratio * self.mean if self.count else math.inf
        self.mean += (1 - self._spec.decay) * (min(norm, limit) - self.mean) if self.count else norm
        self.count = 1
        return limit


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
