"""Figures of a sweep's metric by trial, by step, against another and each axis. Darker lines are
better trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ditlab.reports.formatting import shorten
from ditlab.reports.sweep_axes import Importance, plot_axis, shown_values
from ditlab.reports.sweep_records import (
    AxisInfo,
    SweepSummary,
    Trial,
    best,
    objectives,
    pareto,
    rank,
)
from ditlab_models.figures import Curve, Figure, Lines, PointGroup, Points, Tick, Weight

TRAIN_LOSS = "train/loss"
CURVES_CAPTION = (
    "A line is a trial, the darker the better its rank, the best one thick, failed ones "
    "dashed; it ends where its trial did. Look for curves that still fall at their end (more "
    "steps would help), for crossings after the steps at which trials were stopped (stopping "
    "may have come too early), and for a training loss that goes on falling where the metric "
    "does not."
)
EFFECTS_CAPTION = (
    "Each axis against the metric, the most important first; grey marks are trials that were "
    "stopped early or have not finished, the ring is the best trial; values that are far out "
    "stand at an edge. A clear slope or valley shows where to search next; a flat cloud shows "
    "that the axis matters little."
)
_WIDE = 6.0
"""Ratio of the largest to the smallest value from which an axis of the metric is logarithmic."""
_NAME_CHARACTERS = 22
_STATUSES = {
    "finished": "finished",
    "stopped": "stopped early",
    "interrupted": "interrupted",
    "running": "still running",
}


def objective_figure(summary: SweepSummary) -> Figure | None:
    """Draw the metric by trial, or the first two metrics against each other; None where no trial
    has a value.
    """
    if not any(objectives(summary, trial) for trial in summary.trials):
        return None
    panel = _by_trial(summary) if len(summary.metrics) == 1 else _trade_off(summary)
    return Figure([panel], columns=1)


def objective_caption(summary: SweepSummary) -> str:
    """Caption of the figure: its content, and the patterns to look for."""
    num = len(summary.metrics)
    if num == 1:
        return (
            "The metric of each trial in the order of their numbers, and the best finished one "
            "so far. A line that has long been flat shows that more trials of this search "
            "would hardly help. Values that are far out stand at the edge."
        )
    names = " and ".join(summary.metrics[:2])
    return (
        f"Of {num} metrics {names}. Trials in a ring are Pareto-optimal: no trial beats one in "
        "all of them."
    )


def _by_trial(summary: SweepSummary) -> Points:
    values = shown_values(summary)
    first = best(summary)
    groups = _groups(summary.trials, {number: (number, value) for number, value in values.items()})
    done = sorted(
        trial.number
        for trial in summary.trials
        if trial.status == "finished" and trial.number in values
    )
    curves = []
    if done and first is not None:  # of trials that do not compare, none leads
        better = np.minimum if summary.modes[0] == "min" else np.maximum
        leading = better.accumulate([values[number] for number in done])
        last = max(trial.number for trial in summary.trials)
        x = np.repeat([*done, last], 2)[1:]
        curves = [Curve(x, np.repeat([*leading, leading[-1]], 2)[:-1], "best finished so far")]
    if first is not None:
        groups.append(_ring([(first.number, values[first.number])], f"trial {first.number}"))
    is_log = _is_wide(values.values())
    return Points(
        groups, "", "trial", summary.metrics[0], curves=curves, size=(8.2, 4.3), log_y=is_log
    )


def _trade_off(summary: SweepSummary) -> Points:
    first = shown_values(summary, 0)
    second = shown_values(summary, 1)
    places = {number: (value, second[number]) for number, value in first.items()}
    groups = _groups(summary.trials, places)
    front = pareto(summary)
    if front:
        groups.append(_ring([places[trial.number] for trial in front], "Pareto-optimal"))
    x_label, y_label = summary.goals[:2]
    logs = _is_wide(first.values()), _is_wide(second.values())
    return Points(groups, "", x_label, y_label, size=(8.2, 4.3), log_x=logs[0], log_y=logs[1])


def _is_wide(values: Iterable[float]) -> bool:
    found = [value for value in values if np.isfinite(value)]
    return len(found) > 0 and 0 < _WIDE * min(found) < max(found)


def _groups(
    trials: Iterable[Trial], places: Mapping[int, tuple[float, float]], has_names: bool = True
) -> list[PointGroup]:
    """Points of trials that have a place, by status: finished ones strong."""
    groups = []
    for status, name in _STATUSES.items():
        found = [
            places[trial.number]
            for trial in trials
            if trial.status == status and trial.number in places
        ]
        if found:
            x, y = np.array(found).T
            label = name if has_names else ""
            is_done = status == "finished"
            groups.append(PointGroup(x, y, label, weight="plain" if is_done else "faint"))
    return groups


def _ring(places: Sequence[tuple[float, float]], label: str = "") -> PointGroup:
    x, y = np.array(places, dtype=float).T
    return PointGroup(x, y, label, weight="ring")


def curves_figure(summary: SweepSummary) -> Figure | None:
    """Draw the metric and the training loss over steps, the better the darker; None without any
    curve.
    """
    first = best(summary)
    ranked = [trial for trial in rank(summary) if objectives(summary, trial)]
    shades = {trial.number: place / len(ranked) for place, trial in enumerate(ranked)}
    panels = []
    for name in dict.fromkeys((*summary.metrics[:1], TRAIN_LOSS)):
        curves = []
        for trial in sorted(summary.trials, key=lambda trial: trial is first):
            curve = trial.curves.get(name)
            if curve and len(curve.steps):
                x = np.asarray(curve.steps)
                y = np.asarray(curve.values, dtype=float)
                shade = shades.get(trial.number, np.nan)
                curves.append(Curve(x, y, shade=shade, weight=_weight(trial, first)))
        if curves:
            is_log = _is_wide(np.concatenate([curve.y for curve in curves]))
            panels.append(Lines(curves, "", "step", name, log_y=is_log, size=(4.9, 4.1)))
    return Figure(panels) if panels else None


def _weight(trial: Trial, first: Trial | None) -> Weight:
    if trial is first:
        return "strong"
    return "dashed" if trial.status == "failed" else "plain"


def effects_figure(summary: SweepSummary, known: Mapping[str, Importance]) -> Figure | None:
    """Draw a panel an axis, the most important first; None where no trial has a value or there is
    no axis.
    """
    trials = [trial for trial in summary.trials if objectives(summary, trial)]
    if not trials or not summary.axes:
        return None
    places = {path: place for place, path in enumerate(known)}
    axes = sorted(summary.axes, key=lambda axis: places.get(axis.path, len(places)))
    panels = []
    for axis in axes:
        title = shorten(axis.path, 44)
        if axis.path in known:
            title = f"{title}: ranks spread by {known[axis.path].spread:.0f}"
        panels.append(_effect(summary, trials, axis, title))
    return Figure(panels, columns=2 if len(panels) == 4 else 3)


def _effect(summary: SweepSummary, trials: Sequence[Trial], info: AxisInfo, title: str) -> Points:
    axis = plot_axis(info, trials)
    values = shown_values(summary)
    jitter = 0.5 if axis.names else 0.0
    # multiples of the golden ratio spread consecutive numbers evenly
    places = {
        number: (raw + jitter * (number * 0.6180339887 % 1 - 0.5), values[number])
        for number, raw in axis.raw.items()
    }
    groups = _groups(trials, places, has_names=False)
    first = best(summary)
    if first is not None and first.number in places:
        groups.append(_ring([places[first.number]]))
    ticks = [Tick(place, shorten(name, _NAME_CHARACTERS)) for place, name in enumerate(axis.names)]
    is_log = _is_wide(values.values())
    return Points(
        groups,
        title,
        "",
        summary.metrics[0],
        ticks,
        size=(4.2, 3.1),
        log_x=axis.is_log,
        log_y=is_log,
    )
