"""Size and drawing of each kind of panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from denoisers.figures import Heatmap, ImageGrid, Lines, Panel, Text
from ditlab.reports.rendering.image_grid import GridLayout
from ditlab.reports.rendering.panel_size import PanelSize
from ditlab.reports.rendering.text_panel import draw_text, text_size
from ditlab.reports.rendering.wrapping import wrap

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#4D4D4D")
"""Okabe and Ito's palette, distinguishable for colour-blind readers."""

_TITLE_POINTS = 11
_TITLE_INCHES = _TITLE_POINTS * 1.25 / 72
_LEGEND_INCHES = 1.8
_LABEL_POINTS = 9.5
_TICK_POINTS = 8.5


def panel_size(panel: Panel, dpi: int) -> PanelSize:
    """Compute the size that a panel needs, title and labels included, in inches."""
    size, _ = _BY_KIND[type(panel)]
    width, height = size(panel, dpi)
    title = _title(panel, width, dpi)
    return PanelSize(width, height + (_TITLE_INCHES * (title.count("\n") + 1) + 0.1 if title else 0.0))


def draw_panel(panel: Panel, axes: Axes, size: PanelSize, dpi: int) -> None:
    """Draw a panel into its axes."""
    _, draw = _BY_KIND[type(panel)]
    draw(panel, axes, dpi)
    if panel.title:
        axes.set_title(_title(panel, size.width, dpi), fontsize=_TITLE_POINTS, pad=6)


def _title(panel: Panel, width: float, dpi: int) -> str:
    """Wrap the title to the width of the axes, on which it is centred."""
    beside = {ImageGrid: 0.1, Text: 0.1, Heatmap: 1.3, Lines: 0.9}[type(panel)]
    if isinstance(panel, Lines) and _legend_is_outside(panel):
        beside += _LEGEND_INCHES
    return wrap(panel.title, width - beside, _TITLE_POINTS, dpi)


def _grid_size(panel: ImageGrid, dpi: int) -> PanelSize:
    layout = GridLayout(panel, dpi)
    # A lone narrow strip would leave no room for its title.
    return PanelSize(max(layout.width / dpi + 0.15, 2.4 if panel.title else 1.0), layout.height / dpi + 0.15)


def _draw_grid(panel: ImageGrid, axes: Axes, dpi: int) -> None:
    layout = GridLayout(panel, dpi)
    axes.imshow(layout.draw(), interpolation="nearest", aspect="equal", origin="upper")
    for caption in layout.captions():
        axes.text(
            caption.x, caption.y, caption.text, ha="center", va="top", fontsize=layout.caption_points,
            color="#333333", linespacing=1.1, parse_math=False,
        )  # fmt: skip
    axes.set_axis_off()


def _heatmap_size(panel: Heatmap, dpi: int) -> PanelSize:
    rows, columns = panel.values.shape
    if panel.extent is None and _has_square_cells(panel):
        longest = 4.0 / max(rows, columns)
        return PanelSize(max(2.4, columns * longest) + 1.3, max(1.2, rows * longest) + 0.6)
    return PanelSize(5.2, 3.5)


def _has_square_cells(panel: Heatmap) -> bool:
    rows, columns = panel.values.shape
    return max(rows, columns) <= 5 * min(rows, columns)


def _draw_heatmap(panel: Heatmap, axes: Axes, dpi: int) -> None:
    values = np.ma.masked_invalid(np.asarray(panel.values, dtype=float))
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 1.0)
    if panel.limits is not None:
        low, high = panel.limits
    elif panel.diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    image = axes.imshow(
        values,
        cmap="RdBu_r" if panel.diverging else "viridis",
        vmin=low,
        vmax=high if high > low else low + 1.0,
        extent=panel.extent,
        interpolation="nearest",
        aspect="equal" if panel.extent is None and _has_square_cells(panel) else "auto",
        origin="upper",
    )
    axes.set_facecolor("#dddddd")
    if panel.extent is None:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names, rotation=90)
    if panel.y_names:
        axes.set_yticks(range(len(panel.y_names)), panel.y_names)
    if panel.mark is not None:
        _mark(panel, axes)
    _label(axes, panel.x_label, panel.y_label)
    # An inset keeps to the map's own box, which an equal aspect makes smaller than the space reserved for it.
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0)))
    bar.ax.tick_params(labelsize=_TICK_POINTS)
    bar.outline.set_visible(False)


def _mark(panel: Heatmap, axes: Axes) -> None:
    assert panel.mark is not None
    rows, columns = panel.values.shape
    left, right, bottom, top = panel.extent or (-0.5, columns - 0.5, rows - 0.5, -0.5)
    width, height = (right - left) / columns, (bottom - top) / rows
    row, column = panel.mark
    corner = (left + column * width, top + row * height)
    for colour, line in (("white", 3.5), ("#D55E00", 2.0)):
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line))


def _lines_size(panel: Lines, dpi: int) -> PanelSize:
    if _legend_is_outside(panel):
        return PanelSize(5.6 + _LEGEND_INCHES, max(3.5, 0.6 + 0.185 * len(panel.curves)))
    return PanelSize(5.6, 3.5)


def _legend_is_outside(panel: Lines) -> bool:
    return sum(1 for curve in panel.curves if curve.label) > 6


def _draw_lines(panel: Lines, axes: Axes, dpi: int) -> None:
    if panel.log_y:
        axes.set_yscale("log")
    for index, curve in enumerate(panel.curves):
        colour = COLOURS[index % len(COLOURS)]
        style = ("-", "--", ":", "-.")[index // len(COLOURS) % 4]
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
        # A line of a single point would be invisible.
        marker = "o" if len(x) == 1 else ""
        axes.plot(x, y, color=colour, linestyle=style, linewidth=1.8, marker=marker, label=curve.label or None)
        if curve.band is not None:
            band = np.asarray(curve.band, dtype=float)
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.18, linewidth=0)
    axes.grid(True, color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _label(axes, panel.x_label, panel.y_label)
    if any(curve.label for curve in panel.curves):
        if _legend_is_outside(panel):
            axes.legend(fontsize=_TICK_POINTS, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
        else:
            axes.legend(fontsize=_TICK_POINTS, framealpha=0.85, edgecolor="none")


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, fontsize=_LABEL_POINTS)
    axes.set_ylabel(y_label, fontsize=_LABEL_POINTS)
    axes.tick_params(labelsize=_TICK_POINTS)


_BY_KIND: dict[type, tuple[Callable[[Any, int], PanelSize], Callable[[Any, Axes, int], None]]] = {
    ImageGrid: (_grid_size, _draw_grid),
    Heatmap: (_heatmap_size, _draw_heatmap),
    Lines: (_lines_size, _draw_lines),
    Text: (text_size, draw_text),
}
