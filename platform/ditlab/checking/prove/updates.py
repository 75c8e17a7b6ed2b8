"""Clipping, AdamW, Muon and averages as their papers have them, in float64, from one step's own gradient.

A reading of what follows a gradient begins from the engine's own gradient and state: an Adam step from a gradient near
zero is a coin's toss (its sign alone decides it), and two gradients that differ by a rounding would give other updates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from denoisers.parameter_roles import ParameterRole
from ditlab.spec.optimisation.clipping import ClipSpec, NormClip, RatioZClip, ZClip
from ditlab.spec.optimisation.optimisers import AdamW, Muon

CLIP_TINY = 1e-6
"""Added to the norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True)
class Clipped:
    """Divisor of a step's gradient, and the statistics of norms after it."""

    factor: float
    statistics: dict[str, float]


def clip(spec: ClipSpec, norm: float, statistics: Mapping[str, float]) -> Clipped:
    """Return the clipping of a gradient of this norm: by a fixed norm (Pascanu et al. 2013, arXiv:1211.5063), by
    z-score with reciprocal clipping (ZClip: Kumar et al. 2025, arXiv:2504.02507, algorithm 1), or by ratio to a moving
    average."""
    count, mean, variance = (statistics.get(f"clip.{name}", 0.0) for name in ("count", "mean", "variance"))
    limit = math.inf
    if isinstance(spec, NormClip):
        return Clipped(max(1.0, (norm + CLIP_TINY) / spec.max_norm), {})
    if isinstance(spec, ZClip):
        if count < spec.warmup:
            # The mean and population variance of all norms so far, this one with them.
            total, squares = count * mean + norm, count * (variance + mean**2) + norm**2
            count += 1
            mean, variance = total / count, squares / count - (total / count) ** 2
        else:
            deviation = math.sqrt(variance)
            if deviation and (norm - mean) / deviation > spec.z:
                limit = mean + spec.z**2 / ((norm - mean) / deviation) * deviation
            elif norm > mean and not deviation:
                limit = mean
            seen = min(norm, limit)
            mean = spec.decay * mean + (1 - spec.decay) * seen
            variance = spec.decay * variance + (1 - spec.decay) * (seen - mean) ** 2
        limit = min(limit, math.inf if spec.max_norm is None else spec.max_norm)
    elif isinstance(spec, RatioZClip):
        limit = spec.ratio * mean if count else math.inf
        mean = spec.decay * mean + (1 - spec.decay) * min(norm, limit) if count else norm
        count = 1
    else:
        return Clipped(1.0, {})
    found = {"clip.count": float(count), "clip.mean": mean, "clip.variance": variance}
    return Clipped(max(1.0, (norm + CLIP_TINY) / limit), found)


@dataclass(frozen=True)
class PlainUpdate:
    """One parameter's step, flat, float64; scales are what roundings of a quantity are relative to, elementwise."""

    change: Tensor
    """Amount that is added to the weights."""
    moments: dict[str, Tensor]
    moment_scales: dict[str, Tensor]
    change_scale: Tensor


def adamw(
    spec: AdamW | Muon, lr: float, weight_decay: float, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor],
    number: int,
) -> PlainUpdate:  # fmt: skip
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) as the `number`-th update (from 1)."""
    beta1, beta2 = spec.betas
    first = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient**2
    correction1, correction2 = 1 - beta1**number, 1 - beta2**number
    # Each moment is a sum of two terms; 1 - beta, in float32, has a rounding of 1.
    terms = beta1 * state["exp_avg"].abs() + gradient.abs()
    scales = {"exp_avg": terms, "exp_avg_sq": state["exp_avg_sq"] + gradient**2}
    rate = lr / correction1 / ((second / correction2).sqrt() + spec.eps)
    step = rate * first
    tiny = torch.finfo(torch.float64).tiny
    scale = rate * scales["exp_avg"] + step.abs() * scales["exp_avg_sq"] / (2 * second).clamp(min=tiny)
    # 1 - beta^n has a rounding of 1 too, and so 1 / (1 - beta^n) roundings of itself.
    scale += step.abs() * (1 / correction1 + 1 / correction2)
    decay = lr * weight_decay * weights
    return PlainUpdate(-step - decay, {"exp_avg": first, "exp_avg_sq": second}, scales, scale + decay.abs())


def muon(
    spec: Muon, role: ParameterRole, shape: torch.Size, lr: float, weight_decay: float, weights: Tensor,
    gradient: Tensor, momentum: Tensor, dtype: torch.dtype = torch.float64,
) -> PlainUpdate:  # fmt: skip
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) of one parameter, its matrices one at a time.

    `dtype`: that of the iterations, whose roundings they enlarge.
    """
    followed = spec.momentum * momentum + gradient
    direction = gradient + spec.momentum * followed if spec.nesterov else followed
    turned = direction.view(shape).transpose(0, 1) if role.is_transposed else direction.view(shape)
    matrices = turned.flatten(1).chunk(role.num_parts)
    whole = torch.cat([_scale(spec, *each.shape) * orthogonalise(each, dtype) for each in matrices]).view(turned.shape)
    update = (whole.transpose(0, 1) if role.is_transposed else whole).reshape(-1)
    change = -lr * update - lr * weight_decay * weights
    scale = spec.momentum * momentum.abs() + gradient.abs()
    return PlainUpdate(change, {"momentum": followed}, {"momentum": scale}, change.abs())


def orthogonalise(matrix: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The published quintic iteration, five times, on one matrix (rows, columns); the result is float64."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = (wide / (wide.norm() + 1e-7)).to(dtype)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    x = x.double()
    return x if wide is matrix else x.T


def _scale(spec: Muon, rows: int, columns: int) -> float:
    return 0.2 * math.sqrt(max(rows, columns)) if spec.scale == "rms" else math.sqrt(max(1, rows / columns))


def ema_decay(decay: float, step: int) -> float:
    """Return the decay of the exponential average at step `step` (from 0), with its warm-up."""
    return min(decay, (1 + step) / (10 + step))


def power_decay(length: float, updates: int) -> float:
    """Return beta of the average of power-function profile of a relative length after `updates` updates (from 1).

    Karras et al. 2024, arXiv:2312.02696, eq. 2 and appendix C: beta = (1 - 1/t)^(gamma + 1), where the length is the
    profile's standard deviation, sqrt((gamma + 1) / ((gamma + 2)^2 (gamma + 3))), solved for gamma by bisection.
    """
    low, high = 0.0, 1e6
    for _ in range(200):
        gamma = (low + high) / 2
        if math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3))) > length:
            low = gamma
        else:
            high = gamma
    return (1 - 1 / updates) ** (low + 1)
