"""Learning rate: what the loop steps with, and its function over the whole plan, against closed forms."""

from collections.abc import Iterator, Mapping

import numpy as np

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.life.comparing import bounded
from ditlab.checking.prove.life.observed_steps import StepRecord
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimisation.schedules import SteppedCosineRestartSchedule, WarmupCosineSchedule
from ditlab.training.plan import RunPlan, learning_rate

SCHEDULE = "learning rate"
"""Phase of these comparisons."""
MOST_STEPS = 100_000
"""Steps of a plan that are compared one by one; of a longer one, its ends, its turns and a spread."""
UNITS = 64
"""Roundings of double precision by which two ways of writing a schedule may differ, relative to its highest rate."""


def closed_form(experiment: Experiment, plan: RunPlan, steps: np.ndarray) -> np.ndarray:
    """Return the learning rate of each step (from 0), written as the schedule's formula over all steps at once."""
    spec, base, n = experiment.schedule, experiment.optimizer.lr, steps.astype(np.float64)
    if isinstance(spec, SteppedCosineRestartSchedule):
        cycle = spec.cycle or plan.epoch_steps
        number = np.floor_divide(steps, cycle)
        phase = np.pi * (steps - number * cycle) / cycle
        high = np.maximum(spec.floor, np.power(spec.decay, number.astype(np.float64)))
        low = np.maximum(spec.floor, spec.valley * np.power(spec.decay, number.astype(np.float64)))
        # peak at phase 0, valley at phase pi
        return base * (high * np.cos(phase / 2) ** 2 + low * np.sin(phase / 2) ** 2)
    warmup = spec.warmup
    if spec.warmup_epochs:
        warmup = round(spec.warmup_epochs * plan.epoch_steps)
    rise = (n + 1) / warmup if warmup else np.ones_like(n)
    if not isinstance(spec, WarmupCosineSchedule):
        return base * np.minimum(1.0, rise)
    falling = plan.total_steps - 1 - warmup
    phase = np.pi * np.clip((n - warmup) / max(1, falling), 0, 1)
    fall = spec.final * np.sin(phase / 2) ** 2 + np.cos(phase / 2) ** 2
    return base * np.where(steps < warmup, rise, fall)


def compare_schedule(experiment: Experiment, plan: RunPlan, used: Mapping[int, StepRecord]) -> Iterator[Compared]:
    """Yield the comparison of the loop's own function over the plan, and that of the rates it stepped with.

    `used`: records of a training by step (from 1).
    """
    steps = compared_steps(experiment, plan)
    forms = closed_form(experiment, plan, steps)
    own = [
        learning_rate(experiment.schedule, experiment.optimizer.lr, int(step), plan.total_steps, plan.epoch_steps)
        for step in steps
    ]
    name = f"{len(steps):,} of {plan.total_steps:,} steps of the plan"
    yield _compared(name, steps, np.array(own), forms)
    pairs = [(number - 1, rate) for number, record in sorted(used.items()) for rate in record.rates]
    places = np.array([step for step, _ in pairs], dtype=np.int64)
    rates = np.array([rate for _, rate in pairs], dtype=np.float64)
    yield _compared("rates that steps used", places, rates, closed_form(experiment, plan, places))


def compared_steps(experiment: Experiment, plan: RunPlan) -> np.ndarray:
    """Return the steps (from 0) of a plan whose rates are compared: all, or the ends and a spread of a long plan."""
    total = plan.total_steps
    if total <= MOST_STEPS:
        return np.arange(total)
    spread = np.linspace(0, total - 1, MOST_STEPS // 2).astype(np.int64)
    ends = np.concatenate([np.arange(1000), np.arange(total - 1000, total)])
    spec = experiment.schedule
    length = (spec.cycle or plan.epoch_steps) if isinstance(spec, SteppedCosineRestartSchedule) else 0
    warmup = 0 if isinstance(spec, SteppedCosineRestartSchedule) else spec.warmup_steps(plan.epoch_steps)
    around = np.concatenate([np.arange(-3, 4) + turn * length for turn in range(1, 1000)]) if length else np.arange(0)
    steps = np.unique(np.concatenate([spread, ends, warmup + np.arange(-1000, 1000), around]))
    return steps[(steps >= 0) & (steps < total)]


def _compared(what: str, steps: np.ndarray, rates: np.ndarray, forms: np.ndarray) -> Compared:
    """Compare rates with their closed form; the distance is the largest, relative to the largest rate."""
    largest = max(float(np.abs(forms).max(initial=0.0)), float(np.finfo(np.float64).tiny))
    away = np.abs(rates - forms) / largest
    worst = int(away.argmax()) if len(away) else -1
    bound = UNITS * float(np.finfo(np.float64).eps)
    note = ""
    if len(away) and not away[worst] <= bound:
        note = f"first at step {int(steps[(~(away <= bound)).argmax()]) + 1}; step {int(steps[worst]) + 1} has "
        note += f"{rates[worst]:.6g} in place of {forms[worst]:.6g}"
    return bounded(SCHEDULE, what, float(away[worst]) if len(away) else 0.0, bound, note)
