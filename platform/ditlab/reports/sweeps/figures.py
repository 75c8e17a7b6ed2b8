"""Figures of a sweep's metric by trial, by step and against its second metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator

from ditlab.reports.sweeps.axes import axis_ticks, metric_axis
from ditlab.reports.sweeps.ranking import best, objectives, pareto
from ditlab.reports.sweeps.records import MetricCurve, SweepSummary, Trial
from ditlab.reports.sweeps.style import (
    BEST,
    GREY,
    MARKERS,
    NAMES,
    TICK_POINTS,
    MetricColours,
    frame,
    legend,
    new_canvas,
    set_ticks,
)

CURVES_CAPTION = (
    "A line is a trial, coloured by the metric's last value, the best one thick; it ends where its trial did. Look for "
    "curves that still fall at their end (more steps would help), for crossings after the steps at which trials were "
    "stopped (stopping may have come too early), and for a training loss that goes on falling where the metric does "
    "not."
)

_MOST_POINTS = 2000
"""Most points drawn of a curve; more than there are pixels."""
_WIDE = 6.0
TRAIN_LOSS = "train/loss"


def draw_objective(summary: SweepSummary) -> Canvas | None:
    """Draw the metric by trial, or the first two metrics against each other; None where no trial has a value."""
    if all(objectives(summary, trial) is None for trial in summary.trials):
        return None
    canvas = new_canvas(8.2, 4.3)
    axes = canvas.add_subplot()
    if len(summary.metrics) == 1:
        _draw_by_trial(axes, summary)
    else:
        _draw_trade_off(axes, summary)
    legend(axes)
    return canvas


def objective_caption(summary: SweepSummary) -> str:
    """Caption of the figure: its content, and the patterns to look for."""
    edge = "Marks at an edge with a sign of inequality lie beyond it."
    if len(summary.metrics) == 1:
        return (
            "The metric of each trial in the order of their numbers, and the best finished one so far. A line that has "
            f"long been flat shows that more trials of this search would hardly help. {edge}"
        )
    names = " and ".join(summary.metrics[:2])
    if len(summary.metrics) == 2:
        return f"The trade-off between {names}: no trial beats one on the line in both. {edge}"
    return (
        f"The first two of {len(summary.metrics)} metrics, {names}. Trials in a ring are Pareto-optimal in all of "
        f"them, so some look beaten here. {edge}"
    )


def _draw_by_trial(axes: Axes, summary: SweepSummary) -> None:
    metric = metric_axis(summary)
    _draw_points(axes, summary, {trial.number: trial.number for trial in summary.trials}, metric.positions)
    numbers = [trial.number for trial in summary.trials]
    done = sorted(
        trial.number for trial in summary.trials if trial.status == "finished" and trial.number in metric.positions
    )
    if done:
        accumulate = np.minimum.accumulate if summary.modes[0] == "min" else np.maximum.accumulate
        leading = accumulate([metric.positions[number] for number in done])
        axes.step(
            [*done, max(numbers)], [*leading, leading[-1]], where="post", color=BEST, linewidth=1.8, zorder=2,
            label="best finished so far",
        )  # fmt: skip
    failed = [trial.number for trial in summary.trials if trial.status == "failed"]
    if failed:
        axes.scatter(failed, [-0.13] * len(failed), marker="x", color=GREY, s=30, label="failed", zorder=3)
    first = best(summary)
    if first is not None:
        place = (first.number, metric.positions[first.number])
        axes.scatter(*place, s=110, facecolors="none", edgecolors=BEST, linewidths=2.0, zorder=4)
        above = summary.modes[0] == "max"
        axes.annotate(
            f"trial {first.number}", place, (0, 9 if above else -9), textcoords="offset points", ha="center",
            va="bottom" if above else "top", fontsize=TICK_POINTS, fontweight="bold", color=BEST,
        )  # fmt: skip
    frame(axes, "trial", metric.path)
    axes.set_xlim(min(numbers) - 0.7, max(numbers) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_ticks(axes, metric.ticks, "y")
    axes.set_ylim(-0.18, 1.12)


def _draw_trade_off(axes: Axes, summary: SweepSummary) -> None:
    first, second = metric_axis(summary, 0), metric_axis(summary, 1)
    _draw_points(axes, summary, first.positions, second.positions)
    front = sorted((first.positions[trial.number], second.positions[trial.number]) for trial in pareto(summary))
    if front:
        x, y = np.array(front).T
        axes.scatter(x, y, s=95, facecolors="none", edgecolors=BEST, linewidths=1.8, zorder=4, label="Pareto-optimal")
        # In two metrics the staircase bounds what is dominated; of more it would be a projection that bounds nothing.
        if len(summary.metrics) == 2:
            where: Literal["post", "pre"] = "post" if summary.modes[0] == "min" else "pre"
            axes.step(x, y, where=where, color=BEST, linewidth=1.6, zorder=2)
    labels = [f"{name} ({'lower' if mode == 'min' else 'higher'} is better)"
              for name, mode in zip(summary.metrics, summary.modes, strict=True)]  # fmt: skip
    frame(axes, labels[0], labels[1])
    set_ticks(axes, first.ticks, "x")
    set_ticks(axes, second.ticks, "y")


def _draw_points(axes: Axes, summary: SweepSummary, x: Mapping[int, float], y: Mapping[int, float]) -> None:
    """Draw trials by number, without those that lack either value."""
    for status in ("finished", "stopped", "interrupted", "running"):
        members = [trial.number for trial in summary.trials if trial.status == status and trial.number in y]
        if members:
            done = status == "finished"
            axes.scatter(
                [x[number] for number in members], [y[number] for number in members], marker=MARKERS[status],
                s=34 if done else 24, color="#3B6FA0" if done else GREY, alpha=0.9 if done else 0.75, linewidths=0,
                label=NAMES.get(status, status), zorder=3,
            )  # fmt: skip


def draw_learning_curves(summary: SweepSummary) -> Canvas | None:
    """Draw the metric and the training loss over steps, coloured by the metric's last value; None without any curve."""
    names = [name for name in dict.fromkeys((*summary.metrics[:1], TRAIN_LOSS)) if _has(summary, name)]
    if not names:
        return None
    colours, first = MetricColours.of(summary), best(summary)
    canvas = new_canvas(4.9 * len(names) + 1.1, 4.1)
    panels = canvas.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        drawn = [trial for trial in summary.trials if name in trial.curves and len(trial.curves[name].steps)]
        for trial in drawn:
            _draw_curve(axes, trial.curves[name], trial, colours, trial is first)
        frame(axes, "step", name)
        _set_scale(axes, [value for trial in drawn for value in trial.curves[name].values])
    if colours.axis.raw:
        colours.draw_bar(canvas, list(panels))
    return canvas


def _has(summary: SweepSummary, name: str) -> bool:
    return any(len(trial.curves[name].steps) for trial in summary.trials if name in trial.curves)


def _set_scale(axes: Axes, values: Iterable[float]) -> None:
    """Use a log scale where values span a wide range, so that the ends of curves stay distinguishable."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) > _WIDE * min(finite):
        axes.set_yscale("log")
        low, high = math.log(min(finite)), math.log(max(finite))
        ticks = axis_ticks(low, high, log=True)
        set_ticks(axes, [tick._replace(position=math.exp(low + (high - low) * tick.position)) for tick in ticks], "y")


def _draw_curve(axes: Axes, curve: MetricCurve, trial: Trial, colours: MetricColours, is_best: bool) -> None:
    steps, values = np.asarray(curve.steps, dtype=float), np.asarray(curve.values, dtype=float)
    stride = -(-len(steps) // _MOST_POINTS)
    steps, values = steps[::-1][::stride][::-1], values[::-1][::stride][::-1]  # the last point stays
    style: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.75, "zorder": 3}
    if trial.status == "failed":
        style |= {"linestyle": (0, (4, 3)), "alpha": 0.6}
    if is_best:
        halo = [Stroke(linewidth=3.8, foreground="white"), Normal()]
        style |= {"linewidth": 2.4, "alpha": 1.0, "zorder": 5, "path_effects": halo}
    # A line of a single point would be invisible; the point at the end shows where a trial was stopped.
    axes.plot(steps, values, color=colours.colour(trial), **style)
    axes.plot(steps[-1:], values[-1:], "o", markersize=5 if is_best else 3, color=colours.colour(trial), zorder=4)
