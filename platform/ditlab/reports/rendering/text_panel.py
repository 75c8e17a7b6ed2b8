"""Text panels: texts wrapped, cut to a limit and printable in their font, on alternating bands."""

from __future__ import annotations

import textwrap
from functools import cache

from matplotlib.axes import Axes
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from denoisers.figures import Text
from ditlab.reports.rendering.panel_size import PanelSize

_FONT = "monospace"
_TEXT_POINTS = 9.0
_LINE_SPACING = 1.3
_LINE_INCHES = _TEXT_POINTS * _LINE_SPACING / 72
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
    return PanelSize(max(3.0, longest * _TEXT_POINTS * 0.605 / 72 + 0.7), max(0.5, height) + 0.1)


def draw_text(panel: Text, axes: Axes, dpi: int) -> None:
    """Draw the texts from top to bottom on alternating bands, in inches of the axes."""
    axes.set_axis_off()
    passages = _text_lines(panel)
    total = sum(len(lines) * _LINE_INCHES + 2 * _GAP_INCHES for lines in passages) or 1.0
    top = 1.0
    for number, lines in enumerate(passages):
        height = (len(lines) * _LINE_INCHES + 2 * _GAP_INCHES) / total
        band = "#f4f6f8" if number % 2 == 0 else "white"
        axes.add_patch(
            Rectangle((0, top - height), 1, height, transform=axes.transAxes, facecolor=band, edgecolor="none")
        )
        text = axes.annotate(
            "\n".join(lines), (0, top - _GAP_INCHES / total), xycoords="axes fraction", xytext=(6, 0),
            textcoords="offset points", ha="left", va="top", fontsize=_TEXT_POINTS, family=_FONT,
            linespacing=_LINE_SPACING, parse_math=False, color="#222222",
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
            line for part in _printable(passage).split("\n") for line in textwrap.wrap(part, _TEXT_COLUMNS) or [""]
        ]
        keep = min(_PASSAGE_LINES, left)
        if len(lines) > keep:
            lines = [*lines[:keep], f"... ({len(lines) - keep} more lines)"]
        passages.append(lines)
        left -= len(lines)
    return passages


def _printable(passage: str) -> str:
    """Replace characters that the font lacks by a square: random bytes decode to characters of any script."""
    glyphs = _glyphs()
    return "".join(c if c == "\n" or ord(c) in glyphs else "\N{WHITE SQUARE}" for c in passage.expandtabs(4))


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())
