"""Heat maps: size and drawing."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from denoisers.figures import Heatmap
from ditlab.reports.rendering.panel_size import PanelSize
from ditlab.reports.rendering.plain_text import NAME_CHARACTERS, one_line
from ditlab.reports.rendering.theme import LABEL_POINTS, TICK_POINTS, Theme, label_axes, style_axes, text_on

_CELL_POINTS = 8.0
_CELL_INCHES = (0.21, 0.2)
"""(width, height) of a cell with a text of one character."""
_CELL_CHARACTERS = 6
_UPRIGHT_CHARACTERS = 2
"""Longest names of columns that are not turned: those of heads and of digits."""


def heatmap_margin(panel: Heatmap) -> float:
    """Return the width in inches of all that stands beside a heat map: labels, colour bar and its unit."""
    names = max((len(name) for name in _names(panel.y_names)), default=0)
    return 1.3 + (0.2 if panel.unit else 0.0) + (0.07 * names if panel.cell_texts else 0.0)


def heatmap_size(panel: Heatmap, dpi: int) -> PanelSize:
    """Compute the size of a heat map with its labels and its colour bar."""
    rows, columns = panel.values.shape
    margin = heatmap_margin(panel)
    if panel.cell_texts:
        longest = max((len(text) for row in _cell_texts(panel) for text in row), default=1)
        width = _CELL_INCHES[0] + 0.085 * (longest - 1)
        return PanelSize(columns * width + margin, rows * _CELL_INCHES[1] + 0.6)
    if panel.extent is None and _has_square_cells(panel):
        longest_side = 4.0 / max(rows, columns)
        return PanelSize(max(2.4, columns * longest_side) + margin, max(1.2, rows * longest_side) + 0.6)
    return PanelSize(3.9 + margin, 3.5)


def draw_heatmap(panel: Heatmap, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw a heat map with a colour bar, its mark and its cells' texts."""
    values = np.ma.masked_invalid(np.asarray(panel.values, dtype=float))
    low, high = _limits(panel, values)
    style_axes(axes, theme)
    image = axes.imshow(
        values,
        cmap=theme.diverging if panel.diverging else theme.sequential,
        vmin=low,
        vmax=high if high > low else low + 1.0,
        extent=panel.extent,
        interpolation="none",  # cells as they are; vector formats keep one pixel a cell
        aspect="equal" if panel.extent is None and not panel.cell_texts and _has_square_cells(panel) else "auto",
        origin="upper",
    )
    axes.set_facecolor(theme.blank)
    if panel.extent is None:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if panel.x_names:
        names = _names(panel.x_names)
        rotation = 90 if max(map(len, names)) > _UPRIGHT_CHARACTERS else 0
        axes.set_xticks(range(len(names)), names, rotation=rotation, parse_math=False)
    if panel.y_names:
        axes.set_yticks(range(len(panel.y_names)), _names(panel.y_names), parse_math=False)
    if panel.mark is not None:
        _mark(panel, axes, theme)
    _write_cells(panel, image, axes)
    label_axes(axes, panel.x_label, panel.y_label, theme)
    # An inset keeps to the map's own box, which an equal aspect makes smaller than the space reserved for it.
    figure = axes.figure
    bar = figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0)))
    bar.ax.tick_params(labelsize=TICK_POINTS, color=theme.muted, labelcolor=theme.text)
    if panel.unit:
        bar.ax.set_ylabel(one_line(panel.unit, 60), fontsize=LABEL_POINTS, color=theme.text, parse_math=False)
    bar.outline.set_visible(False)


def _limits(panel: Heatmap, values: np.ma.MaskedArray) -> tuple[float, float]:
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 1.0)
    if panel.limits is not None:
        return panel.limits
    if panel.diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    return low, high


def _has_square_cells(panel: Heatmap) -> bool:
    rows, columns = panel.values.shape
    return max(rows, columns) <= 5 * min(rows, columns)


def _names(names: object) -> list[str]:
    return [one_line(str(name), NAME_CHARACTERS) for name in names]  # type: ignore[attr-defined]


def _cell_texts(panel: Heatmap) -> list[list[str]]:
    return [[one_line(text, _CELL_CHARACTERS, "monospace") for text in row] for row in panel.cell_texts]


def _write_cells(panel: Heatmap, image: AxesImage, axes: Axes) -> None:
    """Write the cells' texts in black or white, whichever is legible on the cell."""
    if not panel.cell_texts:
        return
    colours = np.asarray(image.cmap(image.norm(np.asarray(panel.values, dtype=float))))
    for row, texts in enumerate(_cell_texts(panel)):
        for column, text in enumerate(texts):
            if text:
                red, green, blue = colours[row, column, :3]
                axes.text(
                    column, row, text, ha="center", va="center", fontsize=_CELL_POINTS, family="monospace",
                    color=text_on(red, green, blue), parse_math=False, clip_on=True,
                )  # fmt: skip


def _mark(panel: Heatmap, axes: Axes, theme: Theme) -> None:
    assert panel.mark is not None
    rows, columns = panel.values.shape
    left, right, bottom, top = panel.extent or (-0.5, columns - 0.5, rows - 0.5, -0.5)
    width, height = (right - left) / columns, (bottom - top) / rows
    row, column = panel.mark
    corner = (left + column * width, top + row * height)
    for colour, line in (("white", 3.5), (theme.mark, 2.0)):
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line))
