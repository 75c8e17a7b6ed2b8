"""Clipping, update, moments, averages and rates of the engine's step, read anew from its own gradient and state."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from denoisers.parameter_roles import ParameterRole
from ditlab.averages import START, length_of
from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.gradients import norm_bound
from ditlab.checking.prove.life.schedule import UNITS as SCHEDULE_UNITS
from ditlab.checking.prove.life.schedule import closed_form
from ditlab.checking.prove.records import WholeStep, by_module
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS, joint_norm, stored_dtype
from ditlab.checking.prove.updates import PlainUpdate, adamw, clip, ema_decay, muon, power_decay
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimisation.optimisers import Muon
from ditlab.training.plan import RunPlan


@dataclass(frozen=True)
class ParameterKind:
    """Role and shape of a parameter of the plain network."""

    role: ParameterRole
    shape: torch.Size


def compare_clipping(whole: WholeStep, experiment: Experiment) -> Iterator[Compared]:
    """Yield the comparisons of the factor and the statistics of clipping."""
    spec, before = experiment.training.clip, whole.first.scalars
    norm = joint_norm(whole.gradients.values())
    away = norm_bound(norm, sum(each.numel() for each in whole.gradients.values()))
    plain = clip(spec, norm, before)
    near = [clip(spec, max(0.0, norm + sign * away), before) for sign in (-1, 1)]
    bound = max(abs(each.factor - plain.factor) for each in near) + MARGIN * FLOAT32 * plain.factor
    found = whole.first.clip_factor
    detail = f"step {whole.step + 1}: divided by {found:.4g}"
    yield Compared("clipping", "factor", abs(found - plain.factor), bound, detail, size=plain.factor)
    for name, value in plain.statistics.items():
        own = whole.first.scalars_after.get(name, math.nan)
        room = max(abs(each.statistics[name] - value) for each in near) + MARGIN * FLOAT32 * abs(value)
        yield Compared("clipping", name.replace("clip.", "statistics: "), abs(own - value), room, size=abs(value))


def compare_update(
    whole: WholeStep, experiment: Experiment, plan: RunPlan, kinds: Mapping[str, ParameterKind], number: int,
    on_gpu: bool,
) -> Iterator[Compared]:  # fmt: skip
    """Yield the comparisons of each module's update and moments, and of where weights are stored.

    `number`: the update's, from 1.
    """
    spec, step = experiment.optimizer, f"step {whole.step + 1}"
    lr = float(closed_form(experiment, plan, np.array([whole.step]))[0])
    updates: dict[str, PlainUpdate] = {}
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
    yield Compared("moments", "count of updates", abs(count - 1), 0.0, step)


def _compare_module(
    whole: WholeStep, module: str, updates: Mapping[str, PlainUpdate], enlarged: Mapping[str, float], step: str
) -> Iterator[Compared]:
    before, after = whole.before["master"], whole.after["master"]
    plain = {name: update.change for name, update in updates.items()}
    found = {name: after[name].double() - before[name].double() for name in updates}
    distance = joint_norm(found[name] - plain[name] for name in updates)
    # Weights that are stored more coarsely are a finding of their own, below; the update is judged by what it could be.
    unit = max(UNITS[stored_dtype(after[name])] for name in updates)
    scale = joint_norm(update.change_scale for update in updates.values())
    bound = MARGIN * (FLOAT32 * scale + unit * joint_norm(after[name] for name in updates))
    bound += MARGIN * math.hypot(*(enlarged.get(name, 0.0) for name in updates))
    yield Compared("update", "by module", distance, bound, step, module, joint_norm(plain.values()))
    coarse = [name for name in updates if _is_coarse(before[name], after[name], plain[name])]
    detail = f"{step}: {coarse[0]} holds {str(stored_dtype(after[coarse[0]])).removeprefix('torch.')}" if coarse else ""
    yield Compared("master weights", "held in float32", float(len(coarse)), 0.0, detail, module)
    for moment in dict.fromkeys(moment for update in updates.values() for moment in update.moments):
        own = {name: update for name, update in updates.items() if moment in update.moments}
        away = joint_norm(whole.after[moment][name].double() - update.moments[moment] for name, update in own.items())
        room = MARGIN * FLOAT32 * joint_norm(update.moment_scales[moment] for update in own.values())
        size = joint_norm(update.moments[moment] for update in own.values())
        yield Compared("moments", MOMENTS[moment], away, room, step, module, size)


MOMENTS = {"exp_avg": "first moment", "exp_avg_sq": "second moment", "momentum": "momentum"}


def _is_coarse(before: Tensor, after: Tensor, change: Tensor) -> bool:
    """Return True if weights are stored in half precision though the plain update's result is not of that precision."""
    expected = (before.double() + change).float()
    return stored_dtype(after) != torch.float32 and stored_dtype(expected) == torch.float32 and after.numel() > 1


def compare_weights(whole: WholeStep) -> Iterator[Compared]:
    """Yield the comparisons of the weights that workers compute with with the masters, before the step and after."""
    for when, wrong in (("before", whole.wrong_before), ("after", whole.wrong_weights)):
        detail = f"{when} step {whole.step + 1}: first {wrong[0]}" if wrong else ""
        modules = list(by_module(wrong))
        module = modules[0] if len(modules) == 1 else ""
        yield Compared("master weights", "weights computed with", float(len(wrong)), 0.0, detail, module)


def compare_averages(whole: WholeStep, experiment: Experiment) -> Iterator[Compared]:
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
            yield Compared("average", what, 1.0, 0.0, f"step {whole.step + 1}: the engine's state holds none")
            continue
        for module, names in by_module(whole.before["master"]).items():
            distances, scales, moves = [], [], []
            for name in names:
                old, weights = whole.before[field][name].double(), whole.after["master"][name].double()
                plain = decay * old + (1 - decay) * weights
                distances.append(whole.after[field][name].double() - plain)
                scales.append(plain.abs() + (1 - decay) * (weights - old).abs())
                moves.append((1 - decay) * (weights - old))
            yield Compared(
                "average", what, joint_norm(distances), MARGIN * FLOAT32 * joint_norm(scales),
                f"step {whole.step + 1}, decay {decay:.6g}", module, joint_norm(moves),
            )  # fmt: skip


def compare_rates(
    whole: WholeStep, experiment: Experiment, plan: RunPlan, kinds: Mapping[str, ParameterKind]
) -> Iterator[Compared]:
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
    yield Compared("update", "weight decay of each parameter", float(len(decays)), 0.0, "".join(decays[:1]))
    bound = SCHEDULE_UNITS * float(np.finfo(np.float64).eps)
    yield Compared("learning rate", "of each parameter", largest, bound, "".join(rates[:1]))
