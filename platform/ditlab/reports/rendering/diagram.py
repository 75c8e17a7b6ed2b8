"""Diagrams: boxes on a grid, with arrows between them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from denoisers.figures import Box, Diagram
from ditlab.reports.rendering.panel_size import PanelSize
from ditlab.reports.rendering.plain_text import one_line
from ditlab.reports.rendering.theme import CAPTION_POINTS, LABEL_POINTS, Theme

_COLUMN_INCHES, _ROW_INCHES = 3.1, 0.78
_BOX_INCHES = (2.75, 0.5)
_CHARACTERS = 52
"""Characters of a line in a box; text of more is cut."""
_WHOLE_SIZE = (30, 42)
"""Characters of a box's first and second line up to which they have their size; longer ones are smaller."""


def diagram_size(panel: Diagram, dpi: int) -> PanelSize:
    """Compute the size of a diagram from the places of its boxes."""
    columns = max((box.column for box in panel.boxes), default=0.0)
    rows = max((box.row for box in panel.boxes), default=0.0)
    return PanelSize((columns + 1) * _COLUMN_INCHES + 0.2, (rows + 1) * _ROW_INCHES + 0.2)


def draw_diagram(panel: Diagram, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw the boxes, then the arrows from border to border."""
    axes.set_axis_off()
    columns = max((box.column for box in panel.boxes), default=0.0)
    rows = max((box.row for box in panel.boxes), default=0.0)
    axes.set_xlim(-0.5, columns + 0.5)
    axes.set_ylim(rows + 0.5, -0.5)
    for box in panel.boxes:
        _draw_box(box, axes, theme)
    for arrow in panel.arrows:
        start, end = panel.boxes[arrow.start], panel.boxes[arrow.end]
        tail, head = _ends(start, end)
        axes.add_patch(
            FancyArrowPatch(
                tail, head, arrowstyle="-|>", mutation_scale=11, color=theme.muted, linewidth=1.2, shrinkA=0, shrinkB=0
            )
        )
        if arrow.text:
            middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2)
            axes.annotate(
                one_line(arrow.text, 30), middle, xytext=(4, 0), textcoords="offset points", va="center",
                fontsize=CAPTION_POINTS, color=theme.muted, parse_math=False,
            )  # fmt: skip


def _draw_box(box: Box, axes: Axes, theme: Theme) -> None:
    fill, border = theme.boxes[box.kind]
    width, height = _BOX_INCHES[0] / _COLUMN_INCHES, _BOX_INCHES[1] / _ROW_INCHES
    axes.add_patch(
        FancyBboxPatch(
            (box.column - width / 2, box.row - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.04",
            facecolor=fill, edgecolor=border, linewidth=1.3, mutation_aspect=_COLUMN_INCHES / _ROW_INCHES,
        )
    )  # fmt: skip
    shift = 0.11 / _ROW_INCHES if box.detail else 0.0
    text, detail = one_line(box.text, _CHARACTERS), one_line(box.detail, _CHARACTERS)
    axes.text(
        box.column, box.row - shift, text, ha="center", va="center", fontweight="bold", color=theme.text,
        fontsize=LABEL_POINTS * min(1.0, _WHOLE_SIZE[0] / max(1, len(text))), parse_math=False,
    )  # fmt: skip
    if detail:
        axes.text(
            box.column, box.row + shift, detail, ha="center", va="center", color=theme.text,
            fontsize=CAPTION_POINTS * min(1.0, _WHOLE_SIZE[1] / len(detail)), parse_math=False,
        )  # fmt: skip


def _ends(start: Box, end: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return where an arrow leaves one box and meets the other: at the facing sides, below and above in one column."""
    half_width, half_height = _BOX_INCHES[0] / _COLUMN_INCHES / 2, _BOX_INCHES[1] / _ROW_INCHES / 2
    if abs(end.column - start.column) > 0.9:
        sign = 1 if end.column > start.column else -1
        return (start.column + sign * half_width, start.row), (end.column - sign * half_width, end.row)
    sign = 1 if end.row > start.row else -1
    return (start.column, start.row + sign * half_height), (end.column, end.row - sign * half_height)
