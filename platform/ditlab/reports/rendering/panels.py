"""Panels of a figure: the size of each kind, and drawing, with diagrams, heat maps and texts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from ditlab.reports.rendering.charts import (
    BAR_INCHES,
    MOST_INSIDE,
    draw_bars,
    draw_colour_bar,
    draw_lines,
    draw_points,
)
from ditlab.reports.rendering.image_grid import GridLayout
from ditlab.reports.rendering.theme import (
    CAPTION_POINTS,
    DPI,
    LABEL_POINTS,
    NAME_CHARACTERS,
    PANEL_TITLE_POINTS,
    TEXT_POINTS,
    THEME,
    TITLE_CHARACTERS,
    PanelSize,
    one_line,
    printable,
    style_axes,
    text_on,
    wrap,
)
from ditlab_models.figures import Bars, Diagram, Heatmap, ImageGrid, Lines, Panel, Points, Text

_COLUMN_INCHES = 3.1
_ROW_INCHES = 0.78
_BOX_INCHES = (2.75, 0.5)
_CHARACTERS = 52
"""Characters of a line in a box; text of more is cut."""
_WHOLE_SIZE = (30, 42)
"""Characters of a box's first and second line up to which they have their size; longer ones are
smaller.
"""
_CELL_POINTS = 8.0
_CELL_INCHES = (0.21, 0.2)
"""(width, height) of a cell with a text of one character."""
_CELL_CHARACTERS = 6
_UPRIGHT_CHARACTERS = 2
"""Longest names of columns that are not turned: those of heads and of digits."""
_FONT = "monospace"
_LINE_SPACING = 1.3
_LINE_INCHES = TEXT_POINTS * _LINE_SPACING / 72
_GAP_INCHES = 0.09
_TEXT_COLUMNS = 96
"""Characters per line."""
_PASSAGE_LINES = 40
"""Most lines shown of one text; the text file holds all of it."""
_PANEL_LINES = 240
_LEGEND_INCHES = 1.8
_TITLE_INCHES = PANEL_TITLE_POINTS * 1.25 / 72


def draw_diagram(panel: Diagram, axes: Axes) -> None:
    """Draw the boxes, then the arrows from border to border: of the facing sides, below and above
    in one column.
    """
    axes.set_axis_off()
    columns, rows = _last_places(panel)
    axes.set_xlim(-0.5, columns + 0.5)
    axes.set_ylim(rows + 0.5, -0.5)
    width = _BOX_INCHES[0] / _COLUMN_INCHES
    height = _BOX_INCHES[1] / _ROW_INCHES
    for box in panel.boxes:
        fill, border = THEME.boxes[box.kind]
        axes.add_patch(
            FancyBboxPatch(
                (box.column - width / 2, box.row - height / 2),
                width,
                height,
                facecolor=fill,
                edgecolor=border,
                boxstyle="round,pad=0,rounding_size=0.04",
                linewidth=1.3,
                mutation_aspect=_COLUMN_INCHES / _ROW_INCHES,
            )
        )
        shift = 0.11 / _ROW_INCHES if box.detail else 0.0
        for text, down, weight, size, whole in (
            (box.text, -shift, "bold", LABEL_POINTS, _WHOLE_SIZE[0]),
            (box.detail, shift, "normal", CAPTION_POINTS, _WHOLE_SIZE[1]),
        ):
            line = one_line(text, _CHARACTERS)
            axes.text(
                box.column,
                box.row + down,
                line,
                ha="center",
                va="center",
                fontweight=weight,
                color=THEME.text,
                fontsize=size * min(1.0, whole / max(1, len(line))),
                parse_math=False,
            )
    for arrow in panel.arrows:
        start = panel.boxes[arrow.start]
        end = panel.boxes[arrow.end]
        right = end.column - start.column
        down = end.row - start.row
        if abs(right) > 0.9:
            half = (math.copysign(width / 2, right), 0.0)
        else:
            half = (0.0, math.copysign(height / 2, down))
        tail = (start.column + half[0], start.row + half[1])
        head = (end.column - half[0], end.row - half[1])
        axes.add_patch(
            FancyArrowPatch(
                tail,
                head,
                arrowstyle="-|>",
                mutation_scale=11,
                color=THEME.muted,
                linewidth=1.2,
                shrinkA=0,
                shrinkB=0,
            )
        )
        if arrow.text:
            middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2)
            axes.annotate(
                one_line(arrow.text, 30),
                middle,
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=CAPTION_POINTS,
                color=THEME.muted,
                parse_math=False,
            )


def _last_places(panel: Diagram) -> tuple[float, float]:
    """Column and row of the boxes that are furthest to the right and to the bottom."""
    column = max((box.column for box in panel.boxes), default=0.0)
    row = max((box.row for box in panel.boxes), default=0.0)
    return column, row


def draw_heatmap(panel: Heatmap, axes: Axes) -> None:
    """Draw a heat map with a colour bar, its mark and its cells' texts."""
    values = np.ma.masked_invalid(np.asarray(panel.values, dtype=float))
    low, high = _colour_range(panel, values.compressed())
    style_axes(axes, panel.x_label, panel.y_label, grid=None)
    image = axes.imshow(
        values,
        cmap=THEME.diverging if panel.diverging else THEME.sequential,
        vmin=low,
        vmax=high,
        extent=panel.extent,
        interpolation="none",  # cells as they are; vector formats keep one pixel a cell
        aspect="equal" if _has_square_cells(panel) and not panel.cell_texts else "auto",
        origin="upper",
    )
    axes.set_facecolor(THEME.blank)
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
        rows, columns = panel.values.shape
        left, right, bottom, top = panel.extent or (-0.5, columns - 0.5, rows - 0.5, -0.5)
        width = (right - left) / columns
        height = (bottom - top) / rows
        row, column = panel.mark
        corner = (left + column * width, top + row * height)
        for colour, line in (("white", 3.5), (THEME.mark, 2.0)):
            axes.add_patch(
                Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line)
            )
    colours = image.to_rgba(np.asarray(panel.values, dtype=float))
    for row, texts in enumerate(_cell_texts(panel)):
        for column, text in enumerate(texts):
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=_CELL_POINTS,
                family="monospace",
                color=text_on(colours[row, column, :3]),
                parse_math=False,
                clip_on=True,
            )
    draw_colour_bar(axes, image, panel.unit)


def _colour_range(panel: Heatmap, values: np.ndarray) -> tuple[float, float]:
    """Values of the first and of the last colour."""
    low = 0.0
    high = 1.0
    if len(values):
        low = float(values.min())
        high = float(values.max())
    if panel.diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    low, high = panel.limits or (low, high)
    return low, high if high > low else low + 1.0


def _has_square_cells(panel: Heatmap) -> bool:
    rows, columns = panel.values.shape
    return panel.extent is None and max(rows, columns) <= 5 * min(rows, columns)


def _names(names: Iterable[object]) -> list[str]:
    return [one_line(str(name), NAME_CHARACTERS) for name in names]


def _cell_texts(panel: Heatmap) -> list[list[str]]:
    return [
        [one_line(text, _CELL_CHARACTERS, "monospace") for text in row] for row in panel.cell_texts
    ]


def draw_text(panel: Text, axes: Axes) -> None:
    """Draw the texts from top to bottom on alternating bands, in inches of the axes."""
    axes.set_axis_off()
    passages = _text_lines(panel)
    total = _text_inches(passages) or 1.0
    top = 1.0
    for number, lines in enumerate(passages):
        height = _text_inches([lines]) / total
        band = THEME.band if number % 2 == 0 else THEME.background
        axes.add_patch(
            Rectangle(
                (0, top - height),
                1,
                height,
                transform=axes.transAxes,
                facecolor=band,
                edgecolor="none",
            )
        )
        text = axes.annotate(
            "\n".join(lines),
            (0, top - _GAP_INCHES / total),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=TEXT_POINTS,
            family=_FONT,
            linespacing=_LINE_SPACING,
            parse_math=False,
            color=THEME.text,
        )
        text.set_in_layout(False)  # the panel's size has counted it
        top -= height


def _text_lines(panel: Text) -> list[list[str]]:
    """Wrap each text into lines of at most 96 characters; a text that is cut ends with the number
    of lines dropped.
    """
    passages: list[list[str]] = []
    left = _PANEL_LINES
    for number, passage in enumerate(panel.passages):
        if left <= 0:
            passages.append([f"... and {len(panel.passages) - number} more"])
            break
        lines: list[str] = []
        for part in printable(passage, _FONT).split("\n"):
            lines += textwrap.wrap(part, _TEXT_COLUMNS) or [""]
        keep = min(_PASSAGE_LINES, left)
        if len(lines) > keep:
            lines = [*lines[:keep], f"... ({len(lines) - keep} more lines)"]
        passages.append(lines)
        left -= len(lines)
    return passages


def _text_inches(passages: list[list[str]]) -> float:
    return sum(len(lines) * _LINE_INCHES + 2 * _GAP_INCHES for lines in passages)


def panel_size(panel: Panel) -> PanelSize:
    """Compute the size that a panel needs."""
    match panel:
        case ImageGrid():
            layout = GridLayout(panel)
            # a lone narrow strip would leave no room for its title
            least = 2.4 if panel.title else 1.0
            size = PanelSize(max(layout.width / DPI + 0.15, least), layout.height / DPI + 0.15)
        case Heatmap():
            size = _heatmap_size(panel)
        case Lines():
            size = _lines_size(panel)
        case Bars():
            longest = sum(
                max(map(len, _names(each)), default=0) for each in (panel.names, panel.texts)
            )
            height = max(1.4, 0.7 + BAR_INCHES * len(panel.names))
            size = PanelSize(4.4 + 0.075 * longest, height, 0.9)
        case Points():
            size = PanelSize(*panel.size, 0.9)
        case Diagram():
            columns, rows = _last_places(panel)
            size = PanelSize((columns + 1) * _COLUMN_INCHES + 0.2, (rows + 1) * _ROW_INCHES + 0.2)
        case Text():
            size = _text_size(panel)
    title = _title(panel, size.inner)
    if title:
        return size._replace(height=size.height + (_TITLE_INCHES * (title.count("\n") + 1) + 0.1))
    return size


def _heatmap_size(panel: Heatmap) -> PanelSize:
    rows, columns = panel.values.shape
    margin = 1.5 if panel.unit else 1.3
    texts = _cell_texts(panel)
    if texts:
        margin += 0.07 * max(map(len, _names(panel.y_names)), default=0)
        longest = max(map(len, chain.from_iterable(texts)), default=1)
        width = columns * (_CELL_INCHES[0] + 0.085 * (longest - 1))
        height = rows * _CELL_INCHES[1] + 0.6
    elif _has_square_cells(panel):
        side = 4.0 / max(rows, columns)
        width = max(2.4, columns * side)
        height = max(1.2, rows * side) + 0.6
    else:
        width = 3.9
        height = 3.5
    return PanelSize(width + margin, height, margin)


def _lines_size(panel: Lines) -> PanelSize:
    width, height = panel.size
    beside = 0.0
    if sum(bool(curve.label) for curve in panel.curves) > MOST_INSIDE:
        beside = _LEGEND_INCHES
        height = max(height, 0.6 + 0.185 * len(panel.curves))
    return PanelSize(width + beside, height, 0.9 + beside)


def _text_size(panel: Text) -> PanelSize:
    passages = _text_lines(panel)
    longest = max(map(len, chain.from_iterable(passages)), default=0)
    width = max(3.0, longest * TEXT_POINTS * 0.605 / 72 + 0.7)
    return PanelSize(width, max(0.5, _text_inches(passages)) + 0.1)


def draw_panel(panel: Panel, axes: Axes, size: PanelSize) -> None:
    """Draw a panel into its axes."""
    match panel:
        case ImageGrid():
            layout = GridLayout(panel)
            axes.imshow(layout.draw(), interpolation="none", aspect="equal", origin="upper")
            style: dict[str, Any] = {
                "ha": "center",
                "va": "baseline",
                "fontsize": CAPTION_POINTS,
                "color": THEME.muted,
            }
            for x, y, text in layout.captions():
                axes.text(x, y, text, parse_math=False, **style)
            axes.set_axis_off()
        case Heatmap():
            draw_heatmap(panel, axes)
        case Lines():
            draw_lines(panel, axes)
        case Bars():
            draw_bars(panel, axes)
        case Points():
            draw_points(panel, axes)
        case Diagram():
            draw_diagram(panel, axes)
        case Text():
            draw_text(panel, axes)
    title = _title(panel, size.inner)
    if title:
        axes.set_title(
            title, fontsize=PANEL_TITLE_POINTS, pad=6, color=THEME.text, parse_math=False
        )


def _title(panel: Panel, width: float) -> str:
    """Wrap the title to the width of the axes, on which it is centred."""
    return wrap(one_line(panel.title, TITLE_CHARACTERS), width, PANEL_TITLE_POINTS)
