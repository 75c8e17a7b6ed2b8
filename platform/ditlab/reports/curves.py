"""Figure of a run's loss over steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from denoisers.figures import Curve, Figure, Lines
from ditlab.reports.formatting import format_number

MOST_TIMES = 5.0
"""Largest ratio of the sizes of curves in one panel."""


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Running mean over the last `window` values, over fewer at the start."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def loss_figure(history: Mapping[str, Any]) -> Figure:
    """Draw training loss, raw and smoothed, and held-out metrics from `history`: series (`steps`, `values`) by name."""
    train = history["train/loss"]
    steps, values = np.asarray(train.steps), np.asarray(train.values)
    window = max(1, len(values) // 50)
    curves = [Curve(steps, values, "each step"), Curve(steps, smoothed(values, window), f"mean of {window} steps")]
    panels = [Lines(curves, "Training loss", "step", "loss", log_y=bool((values > 0).all()))]
    held_out = [
        Curve(np.asarray(series.steps), np.asarray(series.values), name.removeprefix("eval/"))
        for name, series in sorted(history.items())
        if name.startswith("eval/")
    ]
    panels += [Lines(curves, "Held-out metrics", "step") for curves in _by_size(held_out)]
    last = ", ".join(f"{curve.label} {format_number(float(curve.y[-1]))}" for curve in held_out if len(curve.y))
    alt = f"Curves over {int(steps[-1]) if len(steps) else 0:,} steps: training loss, each step and smoothed"
    return Figure(panels, alt=f"{alt}, and held-out metrics, at last {last}." if last else f"{alt}.")


def _by_size(curves: Sequence[Curve]) -> list[list[Curve]]:
    """Part curves whose values differ much in size: on one axis, a perplexity would flatten all others."""
    sizes = {curve.label: float(np.nanmax(np.abs(curve.y), initial=0.0)) for curve in curves}
    groups: list[list[Curve]] = []
    largest = 0.0  # of the newest group
    for curve in sorted(curves, key=lambda curve: -sizes[curve.label]):
        if not groups or sizes[curve.label] * MOST_TIMES < largest:
            groups.append([])
            largest = sizes[curve.label]
        groups[-1].append(curve)
    return [sorted(group, key=lambda curve: curve.label) for group in groups]
