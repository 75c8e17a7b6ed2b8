"""Figure of each axis of a sweep against its metric, with a small panel for each axis."""

from __future__ import annotations

from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ditlab.reports.formatting import shorten
from ditlab.reports.sweeps.axes import PlotAxis, Tick, metric_axis, plot_axis
from ditlab.reports.sweeps.importance import Importance
from ditlab.reports.sweeps.ranking import best, objectives
from ditlab.reports.sweeps.records import SweepSummary, Trial
from ditlab.reports.sweeps.style import (
    BEST,
    GREY,
    LABEL_POINTS,
    MARKERS,
    TICK_POINTS,
    frame,
    new_canvas,
    set_ticks,
    spread,
)

EFFECTS_CAPTION = (
    "Each axis against the metric, the most important first; grey marks are trials that were stopped early or have not "
    "finished, bars the medians of categories, the ring is the best trial, and marks at an edge with a sign of "
    "inequality lie beyond it. A clear slope or valley shows where to search next; a flat cloud shows that the axis "
    "matters little."
)

_ABSENT = -0.22
_COLUMNS = 3


def draw_effects(summary: SweepSummary, shares: Importance) -> Canvas | None:
    """Draw the panels, the most important axis first; None where no trial has a value or there is no axis."""
    trials = [trial for trial in summary.trials if objectives(summary, trial) is not None]
    if not trials or not summary.axes:
        return None
    metric = metric_axis(summary)
    axes_of = sorted(summary.axes, key=lambda axis: -shares.shares.get(axis.path, 0.0))
    plot_axes = [plot_axis(axis, trials) for axis in axes_of]
    across = 2 if len(plot_axes) == 4 else min(_COLUMNS, len(plot_axes))
    down = -(-len(plot_axes) // across)
    canvas = new_canvas(3.7 * across + 0.4, 3.1 * down)
    grid = canvas.add_gridspec(down, across)
    for place, each in enumerate(plot_axes):
        axes = canvas.add_subplot(grid[place // across, place % across])
        _draw_panel(axes, each, metric, trials, best(summary))
        share = shares.shares.get(each.path)
        section, dot, name = each.path.rpartition(".")
        title = shorten(name, 30) if share is None else f"{shorten(name, 30)}: {100 * share:.0f} %"
        frame(axes, y_label=summary.metrics[0] if place % across == 0 else "")
        axes.set_title(title, fontsize=LABEL_POINTS + 0.5, fontweight="bold", loc="left", pad=16, parse_math=False)
        axes.annotate(
            shorten(section + dot, 44), (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points",
            fontsize=TICK_POINTS - 0.5, color="#777777", parse_math=False,
        )  # fmt: skip
        _set_ticks(axes, each, metric, absent=len(each.positions) < len(trials))
    return canvas


def _draw_panel(axes: Axes, each: PlotAxis, metric: PlotAxis, trials: list[Trial], first: Trial | None) -> None:
    apart = 0.55 / max(1, len(each.names) - 1) if each.scale == "category" else 0.0

    def at(trial: Trial) -> tuple[float, float]:
        x = each.positions.get(trial.number)
        jitter = spread(trial.number) * (0.12 if x is None else min(apart, 0.3))
        return (_ABSENT if x is None else x) + jitter, metric.positions[trial.number]

    for status, marker in MARKERS.items():
        points = [at(trial) for trial in trials if trial.status == status]
        if points:
            done = status == "finished"
            axes.scatter(
                [x for x, _ in points], [y for _, y in points], s=24 if done else 14, marker=marker, linewidths=0,
                color="#3B6FA0" if done else GREY, alpha=0.75 if done else 0.55, zorder=3,
            )  # fmt: skip
    if first is not None:
        axes.scatter(*at(first), s=95, facecolors="none", edgecolors=BEST, linewidths=2.0, zorder=5)
    ended = {trial.number for trial in trials if trial.status in {"finished", "stopped"}}
    groups = {
        index: [key for key, raw in each.raw.items() if raw == index and key in ended]
        for index in range(len(each.names))
    }
    for index, members in groups.items():
        if not members:
            continue
        x = index / (len(groups) - 1) if len(groups) > 1 else 0.5
        half = min(apart, 0.3) / 2 + 0.02
        middle = metric.position(median(metric.raw[key] for key in members))
        axes.hlines(middle, x - half, x + half, color="#222222", linewidth=2.0, zorder=4)


def _set_ticks(axes: Axes, each: PlotAxis, metric: PlotAxis, absent: bool) -> None:
    ticks = list(each.ticks)
    if absent:
        axes.axvspan(_ABSENT - 0.12, _ABSENT + 0.12, color="#f2f2f2", zorder=0)
        ticks.insert(0, Tick(_ABSENT, "(not used)"))
    slanted = max((len(tick.label) for tick in ticks), default=0) * len(ticks) > 38
    style = {"rotation": 28, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    set_ticks(axes, ticks, "x", **style)
    set_ticks(axes, metric.ticks, "y")
    axes.set_xlim(_ABSENT - 0.13 if absent else -0.08 - 0.1 * (each.scale == "category"), 1.08 + 0.1 * bool(each.names))
    axes.set_ylim(-0.08, 1.08)
