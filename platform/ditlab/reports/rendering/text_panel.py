"""Lines of a text panel: wrapped, cut to a limit, and printable in its font."""

from __future__ import annotations

import textwrap
from functools import cache

from matplotlib.font_manager import findfont, get_font

from denoisers.figures import Text

FONT = "monospace"
"""Font of the texts."""

_TEXT_COLUMNS = 96
"""Characters per line."""
_PASSAGE_LINES = 40
"""Most lines shown of one text; the text file holds all of it."""
_PANEL_LINES = 240


def passage_lines(panel: Text) -> list[list[str]]:
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
    return frozenset(get_font(findfont(FONT)).get_charmap())
