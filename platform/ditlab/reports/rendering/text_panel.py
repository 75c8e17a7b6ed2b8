"""Text panels: texts wrapped, cut to a limit and printable in their font, on alternating bands."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from denoisers.figures import Text
from ditlab.reports.rendering.panel_size import PanelSize
from ditlab.reports.rendering.plain_text import printable
from ditlab.reports.rendering.theme import TEXT_POINTS, Theme

_FONT = "monospace"
_LINE_SPACING = 1.3
_LINE_INCHES = TEXT_POINTS * _LINE_SPACING / 72
_GAP_INCHES = 0.09

_TEXT_COLUMNS = 96
"""Characters per line."""
_PASSAGE_LINES = 40
"""Most lines shown of one text; the text file holds all of it."""
_PANEL_LINES = 240


def text_size(panel: Text, dpi: int) -> PanelSize:
    """Compute the size of a text panel, which is independent of the resolution."""
    passages = _text_lines(panel)
    longest = max((len(line) for lines in passages for line in lines), default=0)
    height = sum(len(lines) * _LINE_INCHES + 2 * _GAP_INCHES for lines in passages)
    return PanelSize(max(3.0, longest * TEXT_POINTS * 0.605 / 72 + 0.7), max(0.5, height) + 0.1)


def draw_text(panel: Text, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw the texts from top to bottom on alternating bands, in inches of the axes."""
    axes.set_axis_off()
    passages = _text_lines(panel)
    total = sum(len(lines) * _LINE_INCHES + 2 * _GAP_INCHES for lines in passages) or 1.0
    top = 1.0
    for number, lines in enumerate(passages):
        height = (len(lines) * _LINE_INCHES + 2 * _GAP_INCHES) / total
        band = theme.band if number % 2 == 0 else theme.background
        axes.add_patch(
            Rectangle((0, top - height), 1, height, transform=axes.transAxes, facecolor=band, edgecolor="none")
        )
        text = axes.annotate(
            "\n".join(lines), (0, top - _GAP_INCHES / total), xycoords="axes fraction", xytext=(6, 0),
            textcoords="offset points", ha="left", va="top", fontsize=TEXT_POINTS, family=_FONT,
            linespacing=_LINE_SPACING, parse_math=False, color=theme.text,
        )  # fmt: skip
        text.set_in_layout(False)  # the panel's size has counted it
        top -= height


def _text_lines(panel: Text) -> list[list[str]]:
    """Wrap each text into lines of at most 96 characters; a text that is cut ends with the number of lines left out."""
    passages: list[list[str]] = []
    left = _PANEL_LINES
    for number, passage in enumerate(panel.passages):
        if left <= 0:
            passages.append([f"... and {len(panel.passages) - number} more"])
            break
        lines = [
            line
            for part in printable(passage, _FONT).split("\n")
            for line in textwrap.wrap(part, _TEXT_COLUMNS) or [""]
        ]
        keep = min(_PASSAGE_LINES, left)
        if len(lines) > keep:
            lines = [*lines[:keep], f"... ({len(lines) - keep} more lines)"]
        passages.append(lines)
        left -= len(lines)
    return passages
