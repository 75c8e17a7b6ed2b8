"""Clipping, update, moments, averages and rates of the engine's step, against those of the papers.

AdamW, Muon and averages are computed in float64 from the step's own gradient and state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from denoisers.parameters import ParameterRole
from ditlab.averages import START, length_of
from ditlab.checking.prove.findings import ProofComparison
from ditlab.checking.prove.gradients import norm_bound
from ditlab.checking.prove.life import RATE_UNITS as SCHEDULE_UNITS
from ditlab.checking.prove.life import closed_form
from ditlab.checking.prove.recording import WholeStep, by_module
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS, joint_norm, stored_dtype
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import AdamW, ClipSpec, Muon, NormClip, RatioZClip, ZClip
from ditlab.training.plan import RunPlan

MOMENTS = {"exp_avg": "first moment", "exp_avg_sq": "second moment", "momentum": "momentum"}
CLIP_TINY = 1e-6
"""Added to the norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True)
class ParameterKind:
    """Role and shape of a parameter of the plain network."""

    role: ParameterRole
    shape: torch.Size


def compare_clipping(whole: WholeStep, experiment: Experiment) -> Iterator[ProofComparison]:
    """Yield the comparisons of the factor and the statistics of clipping."""
    spec, before = experiment.training.clip, whole.first.scalars
    norm = joint_norm(whole.gradients.values())
    away = norm_bound(norm, sum(each.numel() for each in whole.gradients.values()))
    plain = clip(spec, norm, before)
    near = [clip(spec, max(0.0, norm + sign * away), before) for sign in (-1, 1)]
    bound = max(abs(each.factor - plain.factor) for each in near) + MARGIN * FLOAT32 * plain.factor
    found = whole.first.clip_factor
    detail = f"step {whole.step + 1}: divided by {found:.4g}"
    yield ProofComparison("clipping", "factor", abs(found - plain.factor), bound, detail, size=plain.factor)
    for name, value in plain.statistics.items():
        own = whole.first.scalars_after.get(name, math.nan)
        room = max(abs(each.statistics[name] - value) for each in near) + MARGIN * FLOAT32 * abs(value)
        yield ProofComparison(
            "clipping", name.replace("clip.", "statistics: "), abs(own - value), room, size=abs(value)
        )


def compare_update(
    whole: WholeStep, experiment: Experiment, plan: RunPlan, kinds: Mapping[str, ParameterKind], number: int,
    on_gpu: bool,
) -> Iterator[ProofComparison]:  # fmt: skip
    """Yield the comparisons of each module's update and moments, and of where weights are stored.

    `number`: the update's, from 1.
    """
    spec, step = experiment.optimizer, f"step {whole.step + 1}"
    lr = float(closed_form(experiment, plan, np.array([whole.step]))[0])
    updates: dict[str, ReferenceUpdate] = {}
    enlarged: dict[str, float] = {}
    """Roundings as Muon's iterations enlarge them, by parameter."""
    for name, kind in kinds.items():
        rates = spec.rates(kind.role.role)
        weights = whole.before["master"][name].double()
        gradient = whole.gradients.get(name, torch.zeros_like(weights)).double() / whole.first.clip_factor
        rate, decay = lr * rates.lr_factor, rates.weight_decay
        if isinstance(spec, Muon) and rates.is_orthogonalised:
            momentum = whole.before["momentum"][name].double()
            one, other = (
                muon(spec, kind.role, kind.shape, rate, decay, weights, gradient, momentum, dtype)
                for dtype in (torch.float64, torch.bfloat16 if on_gpu else torch.float32)
            )
            updates[name], enlarged[name] = one, joint_norm([one.change - other.change])
        else:
            state = {moment: whole.before[moment][name].double() for moment in ("exp_avg", "exp_avg_sq")}
            updates[name] = adamw(spec, rate, decay, weights, gradient, state, number)
    for module, names in by_module(kinds).items():
        yield from _compare_module(whole, module, {name: updates[name] for name in names}, enlarged, step)
    count = whole.first.scalars_after["adam_step"] - whole.first.scalars["adam_step"]
    yield ProofComparison("moments", "count of updates", abs(count - 1), 0.0, step)


def _compare_module(
    whole: WholeStep, module: str, updates: Mapping[str, ReferenceUpdate], enlarged: Mapping[str, float], step: str
) -> Iterator[ProofComparison]:
    before, after = whole.before["master"], whole.after["master"]
    plain = {name: update.change for name, update in updates.items()}
    found = {name: after[name].double() - before[name].double() for name in updates}
    distance = joint_norm(found[name] - plain[name] for name in updates)
    # Weights that are stored more coarsely are a finding of their own, below; the update is judged by what it could be.
    unit = max(UNITS[stored_dtype(after[name])] for name in updates)
    scale = joint_norm(update.change_scale for update in updates.values())
    bound = MARGIN * (FLOAT32 * scale + unit * joint_norm(after[name] for name in updates))
    bound += MARGIN * math.hypot(*(enlarged.get(name, 0.0) for name in updates))
    yield ProofComparison("update", "by module", distance, bound, step, module, joint_norm(plain.values()))
    coarse = [name for name in updates if _is_coarse(before[name], after[name], plain[name])]
    detail = f"{step}: {coarse[0]} holds {str(stored_dtype(after[coarse[0]])).removeprefix('torch.')}" if coarse else ""
    yield ProofComparison("master weights", "held in float32", float(len(coarse)), 0.0, detail, module)
    for moment in dict.fromkeys(moment for update in updates.values() for moment in update.moments):
        own = {name: update for name, update in updates.items() if moment in update.moments}
        away = joint_norm(whole.after[moment][name].double() - update.moments[moment] for name, update in own.items())
        room = MARGIN * FLOAT32 * joint_norm(update.moment_scales[moment] for update in own.values())
        size = joint_norm(update.moments[moment] for update in own.values())
        yield ProofComparison("moments", MOMENTS[moment], away, room, step, module, size)


def _is_coarse(before: Tensor, after: Tensor, change: Tensor) -> bool:
    """Return True if weights are stored in half precision though the plain update's result is not of that precision."""
    expected = (before.double() + change).float()
    return stored_dtype(after) != torch.float32 and stored_dtype(expected) == torch.float32 and after.numel() > 1


def compare_weights(whole: WholeStep) -> Iterator[ProofComparison]:
    """Yield the comparisons of the weights that workers compute with with the masters, before the step and after."""
    for when, wrong in (("before", whole.wrong_before), ("after", whole.wrong_weights)):
        detail = f"{when} step {whole.step + 1}: first {wrong[0]}" if wrong else ""
        modules = list(by_module(wrong))
        module = modules[0] if len(modules) == 1 else ""
        yield ProofComparison("master weights", "weights computed with", float(len(wrong)), 0.0, detail, module)


def compare_averages(whole: WholeStep, experiment: Experiment) -> Iterator[ProofComparison]:
    """Yield the comparison of each module's averages, read from the engine's own weights after the step."""
    ema = experiment.training.ema
    decays: dict[str, float] = {"ema": ema_decay(ema.decay, whole.step)} if ema else {}
    updates = whole.first.scalars["adam_step"] + 1 - whole.first.scalars.get(START, 0.0)
    for length in experiment.training.averages.lengths if experiment.training.averages else ():
        field = next(name for name in whole.before if length_of(name) == length)
        decays[field] = power_decay(length, max(1, int(updates)))
    for field, decay in decays.items():
        what = "exponential" if field == "ema" else f"power-function, {length_of(field):g}"
        if field not in whole.before:
            yield ProofComparison("average", what, 1.0, 0.0, f"step {whole.step + 1}: the engine's state holds none")
            continue
        for module, names in by_module(whole.before["master"]).items():
            distances, scales, moves = [], [], []
            for name in names:
                old, weights = whole.before[field][name].double(), whole.after["master"][name].double()
                plain = decay * old + (1 - decay) * weights
                distances.append(whole.after[field][name].double() - plain)
                scales.append(plain.abs() + (1 - decay) * (weights - old).abs())
                moves.append((1 - decay) * (weights - old))
            yield ProofComparison(
                "average", what, joint_norm(distances), MARGIN * FLOAT32 * joint_norm(scales),
                f"step {whole.step + 1}, decay {decay:.6g}", module, joint_norm(moves),
            )  # fmt: skip


def compare_rates(
    whole: WholeStep, experiment: Experiment, plan: RunPlan, kinds: Mapping[str, ParameterKind]
) -> Iterator[ProofComparison]:
    """Yield the comparisons of what the optimiser stepped each parameter with: weight decay and learning rate."""
    lr, step = float(closed_form(experiment, plan, np.array([whole.step]))[0]), f"step {whole.step + 1}"
    decays, rates, largest = [], [], 0.0
    for name, kind in kinds.items():
        due, own = experiment.optimizer.rates(kind.role.role), whole.first.rates.get(name)
        if own is None or own.weight_decay != due.weight_decay:
            decays.append(f"{step}: {name} has {own.weight_decay if own else 'none'}, not {due.weight_decay:g}")
        away = abs(own.lr / due.lr_factor - lr) / lr if own else math.inf
        if away > SCHEDULE_UNITS * float(np.finfo(np.float64).eps):
            rates.append(f"{step}: {name} has {own.lr if own else math.nan:.6g}, not {lr * due.lr_factor:.6g}")
        largest = max(largest, away)
    yield ProofComparison("update", "weight decay of each parameter", float(len(decays)), 0.0, "".join(decays[:1]))
    bound = SCHEDULE_UNITS * float(np.finfo(np.float64).eps)
    yield ProofComparison("learning rate", "of each parameter", largest, bound, "".join(rates[:1]))


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
class ReferenceUpdate:
    """One parameter's step, flat, float64; scales are what roundings of a quantity are relative to, elementwise."""

    change: Tensor
    """Amount that is added to the weights."""
    moments: dict[str, Tensor]
    moment_scales: dict[str, Tensor]
    change_scale: Tensor


def adamw(
    spec: AdamW | Muon, lr: float, weight_decay: float, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor],
    number: int,
) -> ReferenceUpdate:  # fmt: skip
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
    return ReferenceUpdate(-step - decay, {"exp_avg": first, "exp_avg_sq": second}, scales, scale + decay.abs())


def muon(
    spec: Muon, role: ParameterRole, shape: torch.Size, lr: float, weight_decay: float, weights: Tensor,
    gradient: Tensor, momentum: Tensor, dtype: torch.dtype = torch.float64,
) -> ReferenceUpdate:  # fmt: skip
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
    return ReferenceUpdate(change, {"momentum": followed}, {"momentum": scale}, change.abs())


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
