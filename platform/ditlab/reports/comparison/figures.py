"""Curves of several runs over steps, samples and time, and their samples side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from denoisers.figures import Figure, ImageGrid, Panel
from ditlab.reports.comparison.curves import AXES, Axis, Track, smoothed
from ditlab.reports.formatting import format_number
from ditlab.reports.rendering.panels import COLOURS, panel_size
from ditlab.reports.rendering.render import DPI
from ditlab.storage.files import write_durably

_WIDTH, _ROW_HEIGHT, _ROW_HEIGHT_OF_MANY = 13.0, 3.3, 2.5  # inches
_RAW_POINTS = 5000
_SIDE_BY_SIDE_INCHES = 15.0
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on, seconds a unit, its name."""


@dataclass(frozen=True)
class Row:
    """One metric of all runs."""

    name: str
    tracks: Mapping[int, Track]
    """By the run's place in the comparison, which is its colour."""
    is_noisy: bool = False
    """Drawn pale as it is, and smoothed."""


def colour_of(place: int) -> str:
    """The colour of the run in this place, the same in every figure of a page."""
    return COLOURS[place % len(COLOURS)]


def draw_curves(rows: Sequence[Row], labels: Sequence[str], path: Path) -> Path:
    """Three panels a row (steps, samples, training time), one legend on top; writes a PNG and returns `path`.

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
        panels[-1, column].set_xlabel(label, fontsize=9.5)
    for row, axes in zip(rows, panels[:, 0], strict=True):
        axes.set_ylabel(row.name, fontsize=10)
    places = sorted({place for row in rows for place in row.tracks})
    lines = [panels[0, 0].plot([], [], color=colour_of(place), linewidth=2.5)[0] for place in places]
    canvas.legend(
        lines, [labels[place] for place in places],
        loc="outside upper center", ncols=min(4, len(places)), fontsize=10.5, frameon=False,
    )  # fmt: skip
    png = io.BytesIO()
    FigureCanvasAgg(canvas).print_png(png)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_durably(path, png.getvalue())


def _draw(row: Row, axis: Axis, scale: float, axes: Axes) -> None:
    for place, track in row.tracks.items():
        colour = colour_of(place)
        if row.is_noisy:
            _plot(axes, _thinned(track), axis, scale, color=colour, alpha=0.3, linewidth=0.8)
            _plot(axes, smoothed(track), axis, scale, color=colour, linewidth=1.9)
        else:
            _plot(axes, track, axis, scale, color=colour, linewidth=1.7, marker="o", markersize=3.5)
    values = np.concatenate([track.values for track in row.tracks.values()])
    finite = values[np.isfinite(values)]
    if len(finite) and (finite > 0).all():
        axes.set_yscale("log")
        few = finite.max() < 12 * finite.min()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7) if few else (1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axes.tick_params(labelsize=8.5)
    axes.grid(True, color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if all(np.isnan(track.along(axis)).all() for track in row.tracks.values()):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", color="#777777")


def _plot(axes: Axes, track: Track, axis: Axis, scale: float, **style: object) -> None:
    # Infinities would stretch the axis for ever; a gap in the line shows them as it shows NaN.
    values = np.where(np.isfinite(track.values), track.values, np.nan)
    if len(values) == 1:
        style["marker"] = "o"
    axes.plot(track.along(axis) / scale, values, **style)  # type: ignore[arg-type]


def _thinned(track: Track) -> Track:
    keep = slice(None, None, max(1, ceil(len(track.values) / _RAW_POINTS)))
    return Track(track.steps[keep], track.samples[keep], track.seconds[keep], track.values[keep])


def _unit(rows: Sequence[Row], axis: Axis) -> tuple[float, str]:
    """What the axis is divided by, and its label."""
    if axis != "seconds":
        return 1.0, {"steps": "steps", "samples": "samples seen"}[axis]
    seconds = np.concatenate([track.seconds for row in rows for track in row.tracks.values()])
    longest = float(np.nanmax(seconds)) if not np.isnan(seconds).all() else 0.0
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
    return scale, f"training time in {unit}"


def side_by_side(grids: Sequence[tuple[str, Figure]]) -> Figure | None:
    """Every run's samples in one figure under its name, two runs or more; None where a run's figure has more panels.

    Images without captions are laid out in a square, so that more runs fit beside each other.
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
