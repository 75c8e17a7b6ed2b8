"""Parallel coordinates (Inselberg 1985): each trial is a line through its values on all axes to its metric."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patheffects import Normal, Stroke

from ditlab.reports.formatting import format_number, shorten
from ditlab.reports.sweeps.axes import PlotAxis, Tick, plot_axis
from ditlab.reports.sweeps.ranking import best
from ditlab.reports.sweeps.records import SweepSummary, Trial
from ditlab.reports.sweeps.style import GREY, LABEL_POINTS, TICK_POINTS, MetricColours, new_canvas, spread

PARALLEL_CAPTION = (
    "A line is a trial: its value on each axis, and at the right its metric. Dark lines are good "
    "ones and the thick one is the best; thin pale ones were stopped early or have not finished, dashed grey ones "
    "failed. Look for axes where dark lines meet in one place: there the value matters. Where the good ones lie at an "
    "axis' end, the space may be too narrow."
)

_MANY = 8
_ABSENT = -0.13
"""Position of a line at an axis that its trial does not use; the axes begin at 0."""
_SPREAD = 0.035
"""Largest distance between lines through one category, so that they stay distinguishable."""


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
    axes.set_ylim(_ABSENT - 0.06, 1.04)
    axes.set_axis_off()
    if colours.axis.raw:
        colours.draw_bar(canvas, axes)
    return canvas


_GROUND = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}


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
        height = each.positions.get(trial.number, _ABSENT)
        apart = each.scale == "category" or height == _ABSENT
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
    for tick in [*each.ticks, *([Tick(_ABSENT, absent)] if absent else [])]:
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
