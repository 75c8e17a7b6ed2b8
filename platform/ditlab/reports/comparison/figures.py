"""Figures of a comparison: curves over steps, samples and time, and all runs' samples in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from denoisers.figures import Figure, ImageGrid, Panel
from ditlab.reports.comparison.curves import AXES, CurveAxis, RunCurve, smoothed
from ditlab.reports.formatting import format_number
from ditlab.reports.rendering.log_axis import set_log_ticks
from ditlab.reports.rendering.panels import COLOURS, panel_size
from ditlab.reports.rendering.plain_text import NAME_CHARACTERS, one_line
from ditlab.reports.rendering.render import DPI, save_canvas
from ditlab.reports.rendering.theme import LABEL_POINTS, LIGHT, TICK_POINTS, light_grid

_WIDTH, _ROW_HEIGHT, _ROW_HEIGHT_OF_MANY = 13.0, 3.3, 2.5  # inches
_RAW_POINTS = 5000
_SIDE_BY_SIDE_INCHES = 15.0
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""(smallest duration in seconds, seconds a unit, the unit's name)."""


@dataclass(frozen=True)
class MetricRow:
    """One metric of several runs."""

    name: str
    curves: Mapping[int, RunCurve]
    """Curves by the index of the run in the comparison, which decides the colour."""
    is_noisy: bool = False
    """True draws the raw curve pale and a smoothed one over it."""


def run_colour(place: int) -> str:
    """Colour of the run with this index, the same in every figure of a page."""
    return COLOURS[place % len(COLOURS)]


def draw_curves(rows: Sequence[MetricRow], labels: Sequence[str], path: Path) -> Path:
    """Draw three panels a row (steps, samples, training time) with one legend on top; write a PNG and return `path`.

    Vertical axes are logarithmic where all of a row's values are above 0.
    """
    height = _ROW_HEIGHT if len(rows) == 1 else _ROW_HEIGHT_OF_MANY
    canvas = Canvas(
        figsize=(_WIDTH, height * len(rows) + 0.6),
        dpi=DPI,
        layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06),  # inches
        facecolor="white",
    )
    panels = canvas.subplots(len(rows), len(AXES), squeeze=False, sharey="row", sharex="col")
    for column, axis in enumerate(AXES):
        scale, label = _unit(rows, axis)
        for row, axes in zip(rows, panels[:, column], strict=True):
            _draw(row, axis, scale, axes)
        panels[-1, column].set_xlabel(label, fontsize=LABEL_POINTS)
    for row, axes in zip(rows, panels[:, 0], strict=True):
        axes.set_ylabel(row.name, fontsize=LABEL_POINTS, parse_math=False)
    places = sorted({place for row in rows for place in row.curves})
    lines = [panels[0, 0].plot([], [], color=run_colour(place), linewidth=2.5)[0] for place in places]
    legend = canvas.legend(
        lines, [one_line(labels[place], NAME_CHARACTERS) for place in places],
        loc="outside upper center", ncols=min(4, len(places)), fontsize=10.5, frameon=False,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    return save_canvas(canvas, path, _about(rows, labels))


def _about(rows: Sequence[MetricRow], labels: Sequence[str]) -> str:
    """The alternative text: the metrics, and where each run's curve ends."""
    ends = []
    for row in rows:
        last = [f"{labels[place]} {format_number(float(curve.values[-1]))}" for place, curve in row.curves.items()]
        ends.append(f"{row.name}: {', '.join(last)}")
    return f"Curves over steps, samples seen and training time, a colour a run. Last values of {'; '.join(ends)}."


def _draw(row: MetricRow, axis: CurveAxis, scale: float, axes: Axes) -> None:
    for place, curve in row.curves.items():
        colour = run_colour(place)
        if row.is_noisy:
            _plot(axes, _thinned(curve), axis, scale, color=colour, alpha=0.3, linewidth=0.8)
            _plot(axes, smoothed(curve), axis, scale, color=colour, linewidth=1.9)
        else:
            _plot(axes, curve, axis, scale, color=colour, linewidth=1.7, marker="o", markersize=3.5)
    values = np.concatenate([curve.values for curve in row.curves.values()])
    finite = values[np.isfinite(values)]
    if len(finite) and (finite > 0).all():
        axes.set_yscale("log")
        set_log_ticks(axes.yaxis, float(finite.min()), float(finite.max()))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axes.tick_params(labelsize=TICK_POINTS)
    light_grid(axes, LIGHT)
    if all(np.isnan(curve.along(axis)).all() for curve in row.curves.values()):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", color="#777777")


def _plot(axes: Axes, curve: RunCurve, axis: CurveAxis, scale: float, **style: object) -> None:
    # An infinity would stretch the axis without end; it becomes a gap in the line, as NaN does.
    values = np.where(np.isfinite(curve.values), curve.values, np.nan)
    if len(values) == 1:
        style["marker"] = "o"
    axes.plot(curve.along(axis) / scale, values, **style)  # type: ignore[arg-type]


def _thinned(curve: RunCurve) -> RunCurve:
    keep = slice(None, None, max(1, ceil(len(curve.values) / _RAW_POINTS)))
    return RunCurve(curve.steps[keep], curve.samples[keep], curve.seconds[keep], curve.values[keep])


def _unit(rows: Sequence[MetricRow], axis: CurveAxis) -> tuple[float, str]:
    """Return the divisor of the axis' values, and its label."""
    if axis != "seconds":
        return 1.0, {"steps": "steps", "samples": "samples seen"}[axis]
    seconds = np.concatenate([curve.seconds for row in rows for curve in row.curves.values()])
    longest = float(np.nanmax(seconds)) if not np.isnan(seconds).all() else 0.0
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
    return scale, f"training time in {unit}"


def side_by_side(grids: Sequence[tuple[str, Figure]]) -> Figure | None:
    """Put the samples of two or more runs into one figure, each under its name; None where a figure has several panels.

    Images without captions are arranged in a square, so that more runs fit beside each other.
    """
    if len(grids) < 2 or any(len(figure.panels) != 1 for _, figure in grids):
        return None
    panels = [_square(replace(figure.panels[0], title=label)) for label, figure in grids]
    widest = max(panel_size(panel, DPI).width for panel in panels)
    columns = min(len(panels), max(1, int(_SIDE_BY_SIDE_INCHES / widest)))
    return Figure(panels, columns=ceil(len(panels) / ceil(len(panels) / columns)))


def _square(panel: Panel) -> Panel:
    if isinstance(panel, ImageGrid) and not panel.captions:
        return replace(panel, columns=max(1, ceil(sqrt(len(panel.images)))))
    return panel
