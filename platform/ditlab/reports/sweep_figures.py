"""Figures of a sweep's metric: by trial, by step, against its second metric, and against each axis.

They share a style: colours by metric, markers by status, axes and legends. Parallel coordinates (Inselberg 1985) draw
each trial as a line through its values on all axes to its metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator

from ditlab.reports.formatting import format_number, shorten
from ditlab.reports.rendering.panels import COLOURS
from ditlab.reports.rendering.render import DPI
from ditlab.reports.rendering.theme import LABEL_POINTS, LIGHT, TICK_POINTS, light_grid
from ditlab.reports.sweep_axes import Importance, PlotAxis, Tick, axis_ticks, metric_axis, plot_axis
from ditlab.reports.sweep_records import MetricCurve, SweepSummary, Trial, best, objectives, pareto

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
EFFECTS_CAPTION = (
    "Each axis against the metric, the most important first; grey marks are trials that were stopped early or have not "
    "finished, bars the medians of categories, the ring is the best trial, and marks at an edge with a sign of "
    "inequality lie beyond it. A clear slope or valley shows where to search next; a flat cloud shows that the axis "
    "matters little."
)
_ABSENT_EFFECT = -0.22
_COLUMNS = 3
PARALLEL_CAPTION = (
    "A line is a trial: its value on each axis, and at the right its metric. Dark lines are good "
    "ones and the thick one is the best; thin pale ones were stopped early or have not finished, dashed grey ones "
    "failed. Look for axes where dark lines meet in one place: there the value matters. Where the good ones lie at an "
    "axis' end, the space may be too narrow."
)
_MANY = 8
_ABSENT_LINE = -0.13
"""Position of a line at an axis that its trial does not use; the axes begin at 0."""
_SPREAD = 0.035
"""Largest distance between lines through one category, so that they stay distinguishable."""
_GROUND = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
MARKERS = {"finished": "o", "stopped": "v", "interrupted": "s", "running": ">", "failed": "x"}
NAMES = {"stopped": "stopped early", "running": "still running"}
GREY = "#9a9a9a"
BEST = COLOURS[1]
TITLE_POINTS = 10.5
_PALEST = 0.9
"""Cut-off of viridis, whose last colour, a bright yellow, is invisible on white."""


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
    known = {name for trial in summary.trials for name, curve in trial.curves.items() if len(curve.steps)}
    names = [name for name in dict.fromkeys((*summary.metrics[:1], TRAIN_LOSS)) if name in known]
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
        return (_ABSENT_EFFECT if x is None else x) + jitter, metric.positions[trial.number]

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
        axes.axvspan(_ABSENT_EFFECT - 0.12, _ABSENT_EFFECT + 0.12, color="#f2f2f2", zorder=0)
        ticks.insert(0, Tick(_ABSENT_EFFECT, "(not used)"))
    slanted = max((len(tick.label) for tick in ticks), default=0) * len(ticks) > 38
    style = {"rotation": 28, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    set_ticks(axes, ticks, "x", **style)
    set_ticks(axes, metric.ticks, "y")
    axes.set_xlim(
        _ABSENT_EFFECT - 0.13 if absent else -0.08 - 0.1 * (each.scale == "category"), 1.08 + 0.1 * bool(each.names)
    )
    axes.set_ylim(-0.08, 1.08)


@dataclass(frozen=True)
class _Layout:
    """Spacing and font size; a wide picture is shown smaller, so its text is drawn larger."""

    pitch: float
    """Distance between axes, in inches."""
    scale: float
    """Factor of the font size."""
    staggered: bool
    """Every second heading is raised, so that each has the width of two."""

    @classmethod
    def of(cls, num: int) -> _Layout:
        pitch = max(1.1, 1.75 - 0.06 * num)
        return cls(pitch, 1.35, True) if num > _MANY else cls(pitch, 1.0, False)

    def characters(self, density: float) -> int:
        """Number of characters that fit between two axes, at `density` characters an inch."""
        return int(self.pitch * density / self.scale)


def draw_parallel_coordinates(summary: SweepSummary) -> Canvas | None:
    """Draw the figure; None where no trial has started."""
    trials = [trial for trial in summary.trials if trial.status != "waiting"]
    if not trials:
        return None
    colours = MetricColours.of(summary)
    plot_axes = [*(plot_axis(axis, summary.trials) for axis in summary.axes), colours.axis]
    first = best(summary)
    layout = _Layout.of(len(plot_axes))
    canvas = new_canvas(2.2 + layout.pitch * len(plot_axes), 6.4 if layout.staggered else 4.9)
    axes = canvas.add_subplot()
    for trial in sorted(trials, key=lambda trial: _order(trial, first, colours, summary)):
        _draw_line(axes, trial, plot_axes, colours, trial is first, len(trials))
    for place, each in enumerate(plot_axes):
        missing = [trial for trial in trials if trial.number not in each.positions]
        absent = "(no value)" if place == len(plot_axes) - 1 else "(not used)"
        _draw_axis(axes, place, each, absent if missing else "", layout)
    if first is not None:
        text = f"  trial {first.number}: {format_number(first.metrics[summary.metrics[0]])}"
        axes.text(
            len(plot_axes) - 1 + 0.03, colours.axis.positions[first.number], text, va="center", ha="left",
            fontsize=layout.scale * LABEL_POINTS, fontweight="bold", parse_math=False, bbox=_GROUND, zorder=12,
        )  # fmt: skip
    axes.set_xlim(-0.25, len(plot_axes) - 0.15)
    axes.set_ylim(_ABSENT_LINE - 0.06, 1.04)
    axes.set_axis_off()
    if colours.axis.raw:
        colours.draw_bar(canvas, axes)
    return canvas


def _order(trial: Trial, first: Trial | None, colours: MetricColours, summary: SweepSummary) -> tuple[int, float]:
    """Drawing order, from back to front: trials without a value, then worse ones, the best last."""
    position = colours.axis.positions.get(trial.number)
    if position is None:
        return 0, 0.0
    layer = 3 if trial is first else 2 if trial.status == "finished" else 1
    return layer, position if summary.modes[0] == "max" else -position


def _draw_line(
    axes: Axes, trial: Trial, plot_axes: list[PlotAxis], colours: MetricColours, is_best: bool, num: int
) -> None:
    heights = []
    for each in plot_axes:
        height = each.positions.get(trial.number, _ABSENT_LINE)
        apart = each.scale == "category" or height == _ABSENT_LINE
        heights.append(height + _SPREAD * spread(trial.number) if apart else height)
    crowd = max(0.45, min(1.0, 6.0 / num**0.5))
    style = {"linewidth": 1.5 * crowd + 0.2, "alpha": 0.85 * crowd + 0.1, "linestyle": "-", "zorder": 3}
    if trial.status == "failed":
        style |= {"linewidth": 1.0, "alpha": 0.8, "linestyle": (0, (4, 3)), "zorder": 2}
    elif trial.status != "finished":
        style |= {"linewidth": 0.8, "alpha": 0.4, "zorder": 2.5}
    if is_best:
        halo = [Stroke(linewidth=6.5, foreground="white"), Normal()]
        style |= {"linewidth": 4.0, "alpha": 1.0, "zorder": 6, "path_effects": halo}
    colour = GREY if trial.status == "failed" else colours.colour(trial)
    axes.plot(range(len(plot_axes)), heights, color=colour, solid_joinstyle="round", **style)


def _draw_axis(axes: Axes, place: int, each: PlotAxis, absent: str, layout: _Layout) -> None:
    axes.plot([place, place], [0.0, 1.0], color="#333333", linewidth=1.1, zorder=8)
    for tick in [*each.ticks, *([Tick(_ABSENT_LINE, absent)] if absent else [])]:
        colour = "#777777" if tick.label == absent else "#333333"
        axes.plot([place - 0.03, place], [tick.position] * 2, color="#333333", linewidth=1.0, zorder=8)
        axes.text(
            place - 0.05, tick.position, shorten(tick.label, layout.characters(13.0)), ha="right", va="center",
            color=colour, fontsize=layout.scale * (TICK_POINTS - 0.5), parse_math=False, bbox=_GROUND, zorder=9,
        )  # fmt: skip
    section, _, name = each.path.rpartition("/" if "/" in each.path else ".")
    above = 12.0 + (34.0 if layout.staggered and place % 2 else 0.0)
    wide = 2.0 if layout.staggered else 1.0
    heads = ((name, 10.5, 0.0, 1.0, "bold", "#222222"), (section, 13.0, 14.0, 0.85, "normal", "#777777"))
    for text, density, higher, size, weight, colour in heads:
        axes.annotate(
            shorten(text, layout.characters(wide * density)), (place, 1.0), (0, above + layout.scale * higher),
            textcoords="offset points", ha="center", fontsize=layout.scale * size * LABEL_POINTS, fontweight=weight,
            color=colour, parse_math=False, annotation_clip=False,
        )  # fmt: skip


@dataclass(frozen=True)
class MetricColours:
    """Colours of trials by the first metric: darker is better."""

    metric: str
    axis: PlotAxis
    colormap: Colormap

    @classmethod
    def of(cls, summary: SweepSummary) -> MetricColours:
        """Scale the colours over all trials with a value."""
        viridis = matplotlib.colormaps["viridis"]
        steps = [_PALEST * step / 255 for step in range(256)]
        listed = ListedColormap([viridis(step) for step in (reversed(steps) if summary.modes[0] == "max" else steps)])
        return cls(summary.metrics[0], metric_axis(summary), listed)

    def colour(self, trial: Trial) -> str | tuple[float, ...]:
        """Colour of a trial; grey where it has no value."""
        position = self.axis.positions.get(trial.number)
        return GREY if position is None else self.colormap(position)

    def draw_bar(self, canvas: Canvas, axes: Axes | Sequence[Axes]) -> None:
        """Draw a colour bar beside `axes`."""
        mappable = ScalarMappable(Normalize(0.0, 1.0), self.colormap)
        bar = canvas.colorbar(mappable, ax=axes, fraction=0.03, pad=0.02, aspect=30)
        set_ticks(bar.ax, self.axis.ticks, "y")
        bar.ax.set_ylabel(self.metric, fontsize=LABEL_POINTS, parse_math=False)
        bar.outline.set_visible(False)


def new_canvas(width: float, height: float) -> Canvas:
    """Make a white figure of this size in inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07)  # inches
    return Canvas(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")


def frame(axes: Axes, x_label: str = "", y_label: str = "", title: str = "") -> None:
    """Set labels and a light grid, and hide the top and right border."""
    light_grid(axes, LIGHT)
    axes.set_xlabel(x_label, fontsize=LABEL_POINTS, parse_math=False)
    axes.set_ylabel(y_label, fontsize=LABEL_POINTS, parse_math=False)
    axes.tick_params(labelsize=TICK_POINTS)
    if title:
        axes.set_title(title, fontsize=TITLE_POINTS, parse_math=False)


def set_ticks(axes: Axes, ticks: Sequence[Tick], direction: str, **style: Any) -> None:
    """Set labelled ticks on the axis `direction`, `x` or `y`."""
    axis = axes.xaxis if direction == "x" else axes.yaxis
    labels = [tick.label for tick in ticks]
    axis.set_ticks([tick.position for tick in ticks], labels=labels, fontsize=TICK_POINTS, parse_math=False, **style)
    axis.set_ticks([], minor=True)


def spread(number: int) -> float:
    """Map consecutive numbers to evenly spread offsets in [-0.5, 0.5] by multiples of the golden ratio."""
    return math.modf(number * 0.6180339887)[0] - 0.5


def legend(axes: Axes) -> None:
    """Draw a legend above the axes at the right, where it covers no point."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(handles), fontsize=TICK_POINTS,
            frameon=False, handletextpad=0.5, columnspacing=1.2, borderaxespad=0.1,
        )  # fmt: skip
