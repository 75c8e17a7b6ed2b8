"""Figure of a run's loss over steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from denoisers.figures import Curve, Figure, Lines


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
    if held_out:
        panels.append(Lines(held_out, "Held-out metrics", "step"))
    return Figure(panels)
