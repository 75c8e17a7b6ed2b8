"""Text of people as figures show it: without markup, printable in the font, and no longer than there is room."""

from __future__ import annotations

from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

TITLE_CHARACTERS = 300
NAME_CHARACTERS = 40


def one_line(text: str, most: int, family: str = "sans-serif") -> str:
    """Return the text on one line, of at most `most` characters, the last of which say that it was cut."""
    # Cut before the split: a text may be a whole book.
    words = " ".join(printable(text[: 4 * most], family).split())
    return words if len(words) <= most and len(text) <= 4 * most else f"{words[: most - 1].rstrip()}…"


def printable(text: str, family: str = "sans-serif") -> str:
    """Replace characters that the font lacks by a square: random bytes decode to characters of any script."""
    glyphs = _glyphs(family)
    return "".join(c if c == "\n" or ord(c) in glyphs else "\N{WHITE SQUARE}" for c in text.expandtabs(4))


@cache
def _glyphs(family: str) -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())
