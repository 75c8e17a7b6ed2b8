"""Figures of a sweep's metric by trial, by step, against another and each axis. Darker lines are better trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Literal

import numpy as np

from ditlab.reports.formatting import format_number, shorten
from ditlab.reports.sweep_axes import Importance, PlotAxis, metric_axis, plot_axis
from ditlab.reports.sweep_records import SweepSummary, Trial, best, objectives, pareto
from ditlab_models.figures import (
    ColourScale,
    Curve,
    Figure,
    Lines,
    Parallel,
    ParallelAxis,
    PointGroup,
    Points,
    Tick,
    Weight,
)

TRAIN_LOSS = "train/loss"
CURVES_CAPTION = (
    "A line is a trial, coloured by the metric's last value, the best one thick; it ends where its trial did. Look for "
    "curves that still fall at their end (more steps would help), for crossings after the steps at which trials were "
    "stopped (stopping may have come too early), and for a training loss that goes on falling where the metric does "
    "not."
)
EFFECTS_CAPTION = (
    "Each axis against the metric, the most important first; grey marks are trials that were stopped early or have not "
    "finished, bars the medians of categories, the ring is the best trial, and marks at an edge with a sign of "
    "inequality lie beyond it. A clear slope or valley shows where to search next; a flat cloud shows that the axis "
    "matters little."
)
PARALLEL_CAPTION = (
    "A line is a trial: its value on each axis, and at the right its metric. Dark lines are good "
    "ones and the thick one is the best; thin pale ones were stopped early or have not finished, dashed grey ones "
    "failed. Look for axes where dark lines meet in one place: there the value matters. Where the good ones lie at an "
    "axis' end, the space may be too narrow."
)
_WIDE = 6.0
"""Ratio of the largest to the smallest value from which the axis of curves is logarithmic."""
_ABSENT = -0.22
"""Place of trials that do not use an axis."""
_SPREAD = 0.035
"""Largest distance between lines through one category, so that they stay distinguishable."""
_STATUSES = {
    "finished": "finished",
    "stopped": "stopped early",
    "interrupted": "interrupted",
    "running": "still running",
}


def objective_figure(summary: SweepSummary, about: str) -> Figure | None:
    """Draw the metric by trial, or the first two metrics against each other; None where no trial has a value."""
    if not any(objectives(summary, trial) for trial in summary.trials):
        return None
    panel = _by_trial(summary) if len(summary.metrics) == 1 else _trade_off(summary)
    return Figure([panel], columns=1, alt=about)


def objective_caption(summary: SweepSummary) -> str:
    """Caption of the figure: its content, and the patterns to look for."""
    names = " and ".join(summary.metrics[:2])
    num = len(summary.metrics)
    if num == 1:
        text = (
            "The metric of each trial in the order of their numbers, and the best finished one so far. A line that has "
            "long been flat shows that more trials of this search would hardly help."
        )
    elif num == 2:
        text = f"The trade-off between {names}: no trial beats one on the line in both."
    else:
        text = (
            f"The first two of {num} metrics, {names}. Trials in a ring are Pareto-optimal in all of them, so some "
            "look beaten here."
        )
    return f"{text} Marks at an edge with a sign of inequality lie beyond it."


def _by_trial(summary: SweepSummary) -> Points:
    metric = metric_axis(summary)
    first = best(summary)
    groups = _groups(summary.trials, lambda trial: (trial.number, metric.positions[trial.number]), metric)
    failed = [trial.number for trial in summary.trials if trial.status == "failed"]
    if failed:
        groups.append(PointGroup(np.array(failed), np.full(len(failed), -0.13), "failed", weight="faint"))
    done = sorted(
        trial.number for trial in summary.trials if trial.status == "finished" and trial.number in metric.positions
    )
    curves = []
    if done and first is not None:  # of trials that do not compare, none leads
        accumulate = np.minimum.accumulate if summary.modes[0] == "min" else np.maximum.accumulate
        leading = accumulate([metric.positions[number] for number in done])
        last = max(trial.number for trial in summary.trials)
        curves = [_staircase([*done, last], [*leading, leading[-1]], "best finished so far")]
    if first is not None:
        groups.append(_ring([(first.number, metric.positions[first.number])], texts=[f"trial {first.number}"]))
    return Points(groups, "", "trial", metric.path, y_ticks=metric.ticks, curves=curves, size=(8.2, 4.3))


def _trade_off(summary: SweepSummary) -> Points:
    first, second = metric_axis(summary, 0), metric_axis(summary, 1)
    groups = _groups(
        summary.trials, lambda trial: (first.positions[trial.number], second.positions[trial.number]), second
    )
    front = sorted((first.positions[trial.number], second.positions[trial.number]) for trial in pareto(summary))
    curves = []
    if front:
        groups.append(_ring(front, "Pareto-optimal"))
        # In two metrics the staircase bounds what is dominated; of more it would be a projection that bounds nothing.
        if len(summary.metrics) == 2:
            x, y = zip(*front, strict=True)
            curves = [_staircase(x, y, is_early=summary.modes[0] == "max")]
    x_label, y_label = summary.goals[:2]
    return Points(groups, "", x_label, y_label, first.ticks, second.ticks, curves, (8.2, 4.3))


def _groups(
    trials: Iterable[Trial], place: Callable[[Trial], tuple[float, float]], known: PlotAxis, has_names: bool = True
) -> list[PointGroup]:
    """Points of trials with a value by status: finished ones strong."""
    groups = []
    for status, name in _STATUSES.items():
        places = [place(trial) for trial in trials if trial.status == status and trial.number in known.positions]
        if places:
            x, y = np.array(places).T
            groups.append(
                PointGroup(x, y, name if has_names else "", weight="plain" if status == "finished" else "faint")
            )
    return groups


def _ring(places: list[tuple[float, float]], label: str = "", texts: Iterable[str] = ()) -> PointGroup:
    x, y = np.array(places, dtype=float).T
    return PointGroup(x, y, label, list(texts), "ring")


def _staircase(x: Iterable[float], y: Iterable[float], label: str = "", is_early: bool = False) -> Curve:
    """A line that steps at each x to its y; an early one goes there first."""
    across, up = np.repeat(list(x), 2), np.repeat(list(y), 2)
    return Curve(across[:-1], up[1:], label) if is_early else Curve(across[1:], up[:-1], label)


def curves_figure(summary: SweepSummary, about: str) -> Figure | None:
    """Draw the metric and the training loss over steps, coloured by the metric's last value; None without any curve."""
    first = best(summary)
    metric = metric_axis(summary)
    panels = []
    for name in dict.fromkeys((*summary.metrics[:1], TRAIN_LOSS)):
        curves = [
            Curve(
                np.asarray(trial.curves[name].steps), np.asarray(trial.curves[name].values, dtype=float),
                shade=_shade(summary, metric, trial), weight=_weight(trial, first, unfinished="plain"),
            )
            for trial in sorted(summary.trials, key=lambda trial: trial is first)
            if name in trial.curves and len(trial.curves[name].steps)
        ]  # fmt: skip
        if curves:
            values = np.concatenate([curve.y[np.isfinite(curve.y)] for curve in curves])
            is_wide = len(values) > 0 and values.min() > 0 and values.max() > _WIDE * values.min()
            panels.append(Lines(curves, "", "step", name, log_y=bool(is_wide), size=(4.9, 4.1)))
    if not panels:
        return None
    panels[-1] = replace(panels[-1], scale=_scale(summary, metric))
    return Figure(panels, alt=about)


def _shade(summary: SweepSummary, metric: PlotAxis, trial: Trial) -> float:
    """Place of a trial on the colour scale, 0 for the best value; NaN without a value."""
    place = metric.positions.get(trial.number, math.nan)
    return 1 - place if summary.modes[0] == "max" else place


def _scale(summary: SweepSummary, metric: PlotAxis) -> ColourScale | None:
    is_max = summary.modes[0] == "max"
    ticks = [Tick(1 - tick.position if is_max else tick.position, tick.label) for tick in metric.ticks]
    return ColourScale(metric.path, ticks) if metric.raw else None


def _weight(trial: Trial, first: Trial | None, unfinished: Literal["plain", "faint"]) -> Weight:
    if trial is first:
        return "strong"
    return "dashed" if trial.status == "failed" else "plain" if trial.status == "finished" else unfinished


def effects_figure(summary: SweepSummary, known: Mapping[str, Importance], about: str) -> Figure | None:
    """Draw a panel an axis, the most important first; None where no trial has a value or there is no axis."""
    trials = [trial for trial in summary.trials if objectives(summary, trial)]
    if not trials or not summary.axes:
        return None
    metric = metric_axis(summary)
    first = best(summary)
    panels = []
    order = list(known)
    for axis in sorted(summary.axes, key=lambda axis: order.index(axis.path) if axis.path in known else len(order)):
        title = shorten(axis.path, 44)
        if axis.path in known:
            title = f"{title}: ranks spread by {known[axis.path].spread:.0f}"
        panels.append(_effect(plot_axis(axis, trials), metric, trials, first, title))
    return Figure(panels, columns=2 if len(panels) == 4 else 3, alt=about)


def _effect(each: PlotAxis, metric: PlotAxis, trials: list[Trial], first: Trial | None, title: str) -> Points:
    apart = min(0.3, 0.55 / max(1, len(each.names) - 1)) if each.scale == "category" else 0.0

    def at(trial: Trial) -> tuple[float, float]:
        x = each.positions.get(trial.number)
        jitter = spread(trial.number) * (0.12 if x is None else apart)
        return (_ABSENT if x is None else x) + jitter, metric.positions[trial.number]

    groups = _groups(trials, at, metric, has_names=False)
    if first is not None:
        groups.append(_ring([at(first)]))
    ended = {trial.number for trial in trials if trial.status in {"finished", "stopped"}}
    curves = []
    for index in range(len(each.names)):
        members = [key for key, raw in each.raw.items() if raw == index and key in ended]
        if members:
            x = each.position(index)
            half = apart / 2 + 0.02
            middle = metric.position(median(metric.raw[key] for key in members))
            curves.append(Curve(np.array([x - half, x + half]), np.full(2, middle)))
    absent = [Tick(_ABSENT, "(not used)")] if len(each.positions) < len(trials) else []
    ticks = [*absent, *each.ticks]
    return Points(groups, title, "", metric.path, ticks, metric.ticks, curves, (4.2, 3.1))


def parallel_figure(summary: SweepSummary, about: str) -> Figure | None:
    """Draw a line a trial through its values on all axes to its metric; None where no trial has started."""
    trials = [trial for trial in summary.trials if trial.status != "waiting"]
    if not trials:
        return None
    metric = metric_axis(summary)
    first = best(summary)
    axes = [*(plot_axis(axis, summary.trials) for axis in summary.axes), metric]

    def order(trial: Trial) -> tuple[bool, bool, float]:
        """From back to front: trials without a value, then worse ones, finished ones, and the best one last."""
        shade = _shade(summary, metric, trial)
        return trial is first, trial.status == "finished", -2.0 if math.isnan(shade) else -shade

    curves = []
    for trial in sorted(trials, key=order):
        jitter = _SPREAD * spread(trial.number)
        heights = [axis.positions.get(trial.number, math.nan) + jitter * (axis.scale == "category") for axis in axes]
        label = f"trial {trial.number}: {format_number(trial.metrics[summary.metrics[0]])}" if trial is first else ""
        shade = _shade(summary, metric, trial)
        weight = _weight(trial, first, unfinished="faint")
        curves.append(Curve(np.arange(len(axes)), np.array(heights), label, shade=shade, weight=weight))
    panel = Parallel([ParallelAxis(axis.path, axis.ticks) for axis in axes], curves, scale=_scale(summary, metric))
    return Figure([panel], columns=1, alt=about)


def spread(number: int) -> float:
    """Map consecutive numbers to evenly spread offsets in [-0.5, 0.5] by multiples of the golden ratio."""
    return math.modf(number * 0.6180339887)[0] - 0.5
