"""Shared style of a sweep's figures: colours by metric, markers by status, axes and legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ditlab.reports.rendering.panels import COLOURS
from ditlab.reports.rendering.render import DPI
from ditlab.reports.rendering.theme import LABEL_POINTS as LABEL_POINTS
from ditlab.reports.rendering.theme import LIGHT, light_grid
from ditlab.reports.rendering.theme import TICK_POINTS as TICK_POINTS
from ditlab.reports.sweeps.axes import PlotAxis, Tick, metric_axis
from ditlab.reports.sweeps.records import SweepSummary, Trial

MARKERS = {"finished": "o", "stopped": "v", "interrupted": "s", "running": ">", "failed": "x"}
NAMES = {"stopped": "stopped early", "running": "still running"}
GREY = "#9a9a9a"
BEST = COLOURS[1]
TITLE_POINTS = 10.5

_PALEST = 0.9
"""Cut-off of viridis, whose last colour, a bright yellow, is invisible on white."""


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
    axis.set_ticks(
        [tick.position for tick in ticks],
        labels=[tick.label for tick in ticks],
        fontsize=TICK_POINTS,
        parse_math=False,
        **style,
    )
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
