"""Rules of training, as their papers have them: learning rates, clipping, averages, Muon.

The reference of `prove` and an ejected file compute with these functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.spec.optimization import (
    NoClip,
    NormClip,
    RatioZClip,
    RisingSchedule,
    Schedule,
    SteppedCosineRestartSchedule,
    WarmupCosineSchedule,
    WarmupStableDecaySchedule,
    ZClip,
)
from ditlab_addons.check.eject.settings import UpdateSettings
from ditlab_models.finetuning import matches
from ditlab_models.parameters import ParameterRole, parameter_roles

CLIP_TINY = 1e-6
"""Added to the norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_."""
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum")
"""Fields of a state that optimisers keep."""
NORM_TINY = 1e-7
"""Added to the norm that a matrix is divided by before it is orthogonalised."""


def rate_factor(schedule: Schedule, step: int, total: int, epoch_steps: int) -> float:
    """Return the share of the learning rate that a step (from 0) of `total` has."""
    if isinstance(schedule, SteppedCosineRestartSchedule):
        # SGDR (Loshchilov & Hutter 2017, arXiv:1608.03983), with peaks and valleys that decay.
        cycle = schedule.cycle or epoch_steps
        number, place = divmod(step, cycle)
        height = schedule.decay**number
        peak = max(schedule.floor, height)
        valley = max(schedule.floor, schedule.valley * height)
        return valley + (peak - valley) * half_cosine(math.pi * place / cycle)
    assert isinstance(schedule, RisingSchedule)
    warmup = schedule.warmup
    if schedule.warmup_epochs:
        warmup = round(schedule.warmup_epochs * epoch_steps)
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    if isinstance(schedule, WarmupCosineSchedule):
        progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
        return schedule.final + (1 - schedule.final) * half_cosine(math.pi * progress)
    if isinstance(schedule, WarmupStableDecaySchedule):
        # MiniCPM (Hu et al. 2024, arXiv:2404.06395); fall by Haegele et al. 2024, arXiv:2405.18392.
        if schedule.decay_start is None or step < schedule.decay_start:
            return 1.0
        done = min(1.0, (step + 1 - schedule.decay_start) / (total - schedule.decay_start))
        if schedule.shape == "sqrt":
            done = math.sqrt(done)
        return schedule.final + (1 - schedule.final) * (1 - done)
    return 1.0


def half_cosine(phase: float) -> float:
    """Fall from 1 to 0 while the phase rises from 0 to pi."""
    return 0.5 * (1 + math.cos(phase))


class UpdateRates(NamedTuple):
    """How a parameter is updated; those of equal rates form a group."""

    lr_factor: float
    """Factor on a step's learning rate."""
    weight_decay: float
    is_orthogonalised: bool = False
    """True for Muon's own parameters, False for AdamW's."""


def parameter_rates(module: nn.Module, update: UpdateSettings) -> dict[str, UpdateRates]:
    """Return the rates of each trained parameter by name, which depend on its role."""
    roles = parameter_roles(module)
    found = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        role = roles[name].role
        lr_factor = dict(update.lr_factors).get(role, 1.0)
        for pattern, factor in update.lr_patterns:
            if matches(pattern, name.removeprefix("network.")):
                lr_factor *= factor
        is_orthogonalised = update.kind == "muon" and role in ("matrix", "convolution")
        if not is_orthogonalised:
            lr_factor = lr_factor * update.adamw_lr / update.lr
        decay = 0.0 if role in update.no_decay else update.weight_decay
        found[name] = UpdateRates(lr_factor, decay, is_orthogonalised)
    return found


def clip_limit(
    clip: NoClip | NormClip | ZClip | RatioZClip, norm: float, statistics: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Return the norm to which a gradient of this norm is scaled down, and the statistics of norms
    after it.

    By a fixed norm (Pascanu et al. 2013, arXiv:1211.5063), by z-score with reciprocal clipping
    (ZClip: Kumar et al. 2025, arXiv:2504.02507, algorithm 1), or by ratio to a moving average.
    """
    if isinstance(clip, NoClip):
        return math.inf, {}
    if isinstance(clip, NormClip):
        return clip.max_norm, {}
    count = statistics.get("clip.count", 0.0)
    mean = statistics.get("clip.mean", 0.0)
    variance = statistics.get("clip.variance", 0.0)
    limit = math.inf
    if isinstance(clip, ZClip):
        away = norm - mean
        if count < clip.warmup:
            # running mean and population variance (Welford 1962)
            mean = mean + away / (count + 1)
            variance = variance + (away * (norm - mean) - variance) / (count + 1)
            count += 1
        else:
            if away > clip.z * math.sqrt(variance):
                limit = mean + clip.z**2 * variance / away
            seen = min(norm, limit)
            mean = mean + (1 - clip.decay) * (seen - mean)
            variance = variance + (1 - clip.decay) * ((seen - mean) ** 2 - variance)
        if clip.max_norm is not None:
            limit = min(limit, clip.max_norm)
    elif isinstance(clip, RatioZClip):
        if count:
            limit = clip.ratio * mean
            mean = mean + (1 - clip.decay) * (min(norm, limit) - mean)
        else:
            mean = norm
        count = 1.0
    return limit, {"clip.count": count, "clip.mean": mean, "clip.variance": variance}


def ema_decay(longest: float, step: int) -> float:
    """Return the decay of the exponential average at a step (from 0), lower in the beginning."""
    return min(longest, (1 + step) / (10 + step))


def power_share(length: float, updates: int) -> float:
    """Return the share of the weights of update `updates` (from 1) in the average of power-function
    profile of a relative length.

    Karras et al. 2024, arXiv:2312.02696, eq. 2 and appendix C: the decay is (1 - 1/t)^(gamma + 1),
    where the length is the profile's standard deviation, sqrt((gamma + 1) / ((gamma + 2)^2 (gamma +
    3))): the largest root of a cubic.
    """
    inverse = length**-2
    gamma = float(np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max())
    if updates == 1:
        return 1.0
    return -math.expm1(math.log1p(-1 / updates) * (gamma + 1))


def muon_change(
    update: UpdateSettings, role: ParameterRole, direction: Tensor, dtype: torch.dtype
) -> tuple[Tensor, float]:
    """Return a parameter's orthogonalised direction, and the factor on it: weights move against
    their product, times the learning rate.

    The factor `rms` is that of Liu et al. 2025, arXiv:2502.16982, eq. 4.
    """
    turned = direction.transpose(0, 1) if role.is_transposed else direction
    matrices = turned.reshape(role.num_parts, len(turned) // role.num_parts, -1)
    _, rows, columns = matrices.shape
    factor = math.sqrt(max(1.0, rows / columns))
    if update.scale == "rms":
        factor = 0.2 * math.sqrt(max(rows, columns))
    change = orthogonalise(matrices, dtype).view(turned.shape)
    return change.transpose(0, 1) if role.is_transposed else change, factor


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring all singular values of matrices (num, rows, columns) near 1 by five iterations of
    Muon's quintic (Jordan et al. 2024, kellerjordan.github.io/posts/muon), in `dtype`.
    """
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + NORM_TINY)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT.contiguous()
    x = x.to(dtype)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return (x.mT if is_tall else x).to(matrices.dtype)
