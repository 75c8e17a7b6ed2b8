"""Figures of one run: its loss over steps, its network's parameters, its learning-rate schedule,
memory by setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ditlab.reports.charts import even_places, running_median
from ditlab.reports.formatting import format_number
from ditlab.spec.optimization import (
    ConstantSchedule,
    ScheduleSpec,
    SteppedCosineRestartSchedule,
    WarmupCosineSchedule,
    WarmupStableDecaySchedule,
)
from ditlab_models.figures import Bars, Curve, Figure, Lines

MAX_POINTS = 2000


def loss_figure(history: Mapping[str, Any]) -> Figure:
    """Draw training loss, raw and smoothed, and held-out metrics from `history`: series (`steps`,
    `values`) by name.
    """
    train = history["train/loss"]
    panels = [metric_panel(train, "Training loss", "each step", "loss")]
    held_out = [
        Curve(series.steps, series.values, name.removeprefix("eval/"))
        for name, series in sorted(history.items())
        if name.startswith("eval/")
    ]
    panels += [Lines([replace(curve, label="")], curve.label, "step") for curve in held_out]
    last = ", ".join(
        f"{curve.label} {format_number(curve.y[-1])}" for curve in held_out if len(curve.y)
    )
    num = int(train.steps[-1]) if len(train.steps) else 0
    alt = f"Curves over {num:,} steps: training loss, each step and smoothed"
    if last:
        alt += f", and held-out metrics, at last {last}"
    return Figure(panels, alt=f"{alt}.")


def metric_panel(
    series: Any, title: str, label: str, y_label: str = "", is_loss: bool = True
) -> Lines:
    """Draw a series (`steps`, `values`), of many points with their running median; a loss has a
    logarithmic axis.
    """
    steps = series.steps
    values = series.values
    window = len(values) // 50
    curves = [Curve(steps, values)]
    if window > 1:
        places, medians = running_median(values, window)
        curves = [Curve(steps, values, label), Curve(steps[places], medians, f"median of {window}")]
    is_log = is_loss and len(values) > 0 and bool((values > 0).all())
    return Lines(curves, title, "step", y_label, log_y=is_log)


def parameters_figure(components: Mapping[str, int], family: str) -> Figure:
    """Draw the number of parameters of each component, with their shares of the total."""
    total = sum(components.values())
    texts = [f"{count:,} ({count / max(total, 1):.1%})" for count in components.values()]
    bars = Bars(
        list(components), np.array(list(components.values())), "", "parameters", texts=texts
    )
    return Figure([bars], title=f"{total:,} parameters of {family}, by component", columns=1)


def schedule_figure(rate: Callable[[int], float], total: int) -> Figure:
    """Draw one run's learning rate, `rate(step)` for steps 0 to total - 1."""
    steps = even_places(total, MAX_POINTS)
    curve = Curve(steps, np.array([rate(int(step)) for step in steps]))
    return Figure([Lines([curve], "Learning rate", "step", "learning rate")])


def schedules_figure(
    learning_rate: Callable[[ScheduleSpec, float, int, int, int], float],
) -> Figure:
    """Draw every kind of schedule at learning rate 1 over 1,000 steps of 10 epochs."""
    total = 1000
    epoch = 100
    kinds: list[ScheduleSpec] = [
        ConstantSchedule(warmup=50),
        WarmupCosineSchedule(warmup=50, final=0.05),
        WarmupStableDecaySchedule(warmup=50, decay_start=800),
        SteppedCosineRestartSchedule(),
    ]
    steps = range(total)
    curves = [
        Curve(
            np.array(steps),
            np.array([learning_rate(kind, 1.0, step, total, epoch) for step in steps]),
            kind.kind,
        )
        for kind in kinds
    ]
    return Figure([Lines(curves, "Learning-rate schedules", "step", "share of the learning rate")])
