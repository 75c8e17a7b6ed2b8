"""Figures of one run: its loss over steps, its network's parameters, its learning-rate schedule, memory by setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

from denoisers.figures import Bars, Curve, Figure, Lines
from ditlab.reports.formatting import format_number
from ditlab.reports.rendering.render import DPI, save_canvas
from ditlab.reports.rendering.theme import LIGHT, TICK_POINTS, TITLE_POINTS, Theme, label_axes, light_grid, style_axes
from ditlab.spec.optimization import ConstantSchedule, ScheduleSpec, SteppedCosineRestartSchedule, WarmupCosineSchedule

MOST_TIMES = 5.0
"""Largest ratio of the sizes of curves in one panel."""
MAX_POINTS = 2000
GIB = 2**30


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


def parameters_figure(components: Mapping[str, int], family: str) -> Figure:
    """Draw the number of parameters of each component, with their shares of the total."""
    total = sum(components.values())
    texts = [f"{count:,} ({count / max(total, 1):.1%})" for count in components.values()]
    bars = Bars(list(components), np.array(list(components.values())), "", "parameters", texts=texts)
    return Figure([bars], title=f"{total:,} parameters of {family}, by component", columns=1)


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


@dataclass(frozen=True)
class MemoryBar:
    """Memory under one setting."""

    name: str
    parts: Mapping[str, int]
    """Bytes by what holds them, in the order of the stack; the same names in every bar."""
    is_recommended: bool = False


def draw_memory(bars: Sequence[MemoryBar], limit: int, title: str, path: Path, theme: Theme = LIGHT) -> Path:
    """Draw the bars, the first on top, and a line at `limit` bytes; write the PNG `path` and return it.

    Raises OSError where the disk refuses.
    """
    canvas = Canvas(figsize=(8.4, 1.7 + 0.3 * len(bars)), dpi=DPI, layout="constrained")
    canvas.set_facecolor(theme.background)
    axes = canvas.add_subplot()
    starts = [0.0] * len(bars)
    for index, name in enumerate(bars[0].parts):
        widths = [bar.parts[name] / GIB for bar in bars]
        axes.barh(range(len(bars)), widths, left=starts, height=0.7, color=theme.curves[index], label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    names = [f"{bar.name}  \N{BLACK LEFT-POINTING TRIANGLE}" if bar.is_recommended else bar.name for bar in bars]
    axes.set_yticks(range(len(bars)), names, parse_math=False)
    axes.invert_yaxis()
    largest = max(starts)
    if limit / GIB < 4 * largest:
        axes.axvline(limit / GIB, color=theme.text, linewidth=1.4, linestyle="--", label="memory of the device")
    for place, width in enumerate(starts):
        axes.annotate(
            f"{width:,.3g}", (width, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=TICK_POINTS, color=theme.text,
        )  # fmt: skip
    axes.margins(x=0.08)
    light_grid(axes, theme)
    axes.grid(False, axis="y")
    style_axes(axes, theme)
    label_axes(axes, "GiB on each worker's device, at its peak", "", theme)
    axes.set_title(title, fontsize=TITLE_POINTS, fontweight="bold", color=theme.text, parse_math=False)
    canvas.legend(loc="outside lower center", ncols=4, fontsize=TICK_POINTS, labelcolor=theme.text, frameon=False)
    about = "; ".join(f"{bar.name}: {sum(bar.parts.values()) / GIB:,.3g} GiB" for bar in bars)
    return save_canvas(canvas, path, f"Stacked bars of memory by setting. {about}. The device has {limit / GIB:,.3g}.")
