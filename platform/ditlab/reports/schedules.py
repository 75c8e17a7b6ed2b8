"""Figures of learning-rate schedules."""

from collections.abc import Callable

import numpy as np

from denoisers.figures import Curve, Figure, Lines
from ditlab.spec.optimisation.schedules import (
    ConstantSchedule,
    ScheduleSpec,
    SteppedCosineRestartSchedule,
    WarmupCosineSchedule,
)

MAX_POINTS = 2000


def schedule_figure(rate: Callable[[int], float], total: int) -> Figure:
    """Draw one run's learning rate, `rate(step)` for steps 0 to total - 1."""
    steps = np.unique(np.linspace(0, total - 1, min(total, MAX_POINTS)).round().astype(int))
    curve = Curve(steps, np.array([rate(int(step)) for step in steps]))
    return Figure([Lines([curve], "Learning rate", "step", "learning rate")])


def schedules_figure(learning_rate: Callable[[ScheduleSpec, float, int, int, int], float]) -> Figure:
    """Draw every kind of schedule at learning rate 1 over 1,000 steps of 10 epochs."""
    total, epoch = 1000, 100
    kinds: list[ScheduleSpec] = [
        ConstantSchedule(warmup=50),
        WarmupCosineSchedule(warmup=50, final=0.05),
        SteppedCosineRestartSchedule(),
    ]
    steps = np.arange(total)
    curves = [
        Curve(steps, np.array([learning_rate(kind, 1.0, int(step), total, epoch) for step in steps]), kind.kind)
        for kind in kinds
    ]
    return Figure([Lines(curves, "Learning-rate schedules", "step", "share of the learning rate")])
