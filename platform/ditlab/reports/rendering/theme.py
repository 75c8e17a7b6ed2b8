"""Style of every figure: colours, sizes, and people's text as printable text without markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import ClassVar, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.font_manager import FontProperties, findfont, get_font

DPI = 120
"""Pixels per inch of every picture."""
TITLE_POINTS = 13.0
PANEL_TITLE_POINTS = 11.0
LABEL_POINTS = 9.5
TICK_POINTS = 8.5
CAPTION_POINTS = 8.0
TEXT_POINTS = 9.0
LINE_WIDTH = 1.8
_LABEL_CHARACTERS = 100
TITLE_CHARACTERS = 300
NAME_CHARACTERS = 40
_GAPS = re.compile(r"(?<!=)\s+(?!=)")
"""Spaces at which a line may end: not those of `t = 0.5`."""


class Theme:
    """Colours of figures."""

    background = "#ffffff"
    text = "#1d2329"
    muted = "#4a545e"
    """Captions and borders of axes."""
    grid = "#e3e3e3"
    blank = "#d5d9dd"
    """Cells without a value, and outlines of images."""
    band = "#f4f6f8"
    """Every second passage of text, and boxes of data."""
    curves = (
        "#0072B2",
        "#D55E00",
        "#00805C",
        "#B8528A",
        "#9A6A00",
        "#2F86BF",
        "#7F3C8D",
        "#4D4D4D",
    )
    mark = curves[1]
    """Colour of highlights."""
    boxes: ClassVar = {
        "data": ("#eef1f4", "#4a545e"),
        "layer": ("#e1effa", "#0072B2"),
        "condition": ("#fdeee0", "#B85000"),
    }
    """(fill, border) of a diagram's boxes by kind."""
    sequential = matplotlib.colormaps["viridis"]
    diverging = LinearSegmentedColormap.from_list(
        "blue-white-orange",
        ["#053d6b", "#1f78b4", "#9ccae6", "#f7f7f7", "#fdbb84", "#d95f0e", "#7f2704"],
    )


THEME = Theme()


def style_axes(
    axes: Axes, x_label: str, y_label: str, grid: Literal["both", "x"] | None = "both"
) -> None:
    """Colour axes and label them; with a grid behind the data there is no border at the top and the
    right.
    """
    axes.set_facecolor(THEME.background)
    axes.tick_params(labelsize=TICK_POINTS, color=THEME.muted, labelcolor=THEME.text)
    for side, spine in axes.spines.items():
        spine.set_color(THEME.muted)
        spine.set_visible(not grid or side in ("left", "bottom"))
    if grid:
        axes.grid(True, axis=grid, color=THEME.grid, linewidth=0.8)
        axes.set_axisbelow(True)
    for label, place in ((x_label, axes.set_xlabel), (y_label, axes.set_ylabel)):
        place(
            one_line(label, _LABEL_CHARACTERS),
            fontsize=LABEL_POINTS,
            color=THEME.text,
            parse_math=False,
        )


def text_on(colour: Iterable[float]) -> str:
    """Return black or white, whichever is easier to read on a colour by its luminance (WCAG 2.2).

    `colour`: red, green and blue in [0, 1].
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    if np.dot((0.2126, 0.7152, 0.0722), linear) > 0.179:
        return "#000000"
    return "#ffffff"


class PanelSize(NamedTuple):
    """Inches that a panel needs, title and labels included."""

    width: float
    height: float
    margin: float = 0.1
    """Part of the width beside the axes, for labels, a colour bar, a legend."""

    @property
    def inner(self) -> float:
        """Width of the axes."""
        return self.width - self.margin


def one_line(text: str, most: int, family: str = "sans-serif") -> str:
    """Return the text on one line, of at most `most` characters, the last of which say that it was
    cut.
    """
    # Cut before the split: a text may be a whole book.
    words = " ".join(printable(text[: 4 * most], family).split())
    if len(words) <= most and len(text) <= 4 * most:
        return words
    return f"{words[: most - 1].rstrip()}…"


def printable(text: str, family: str = "sans-serif") -> str:
    """Replace characters that the font lacks by a square: random bytes decode to characters of any
    script.
    """
    glyphs = _glyphs(family)
    return "".join(
        c if c == "\n" or ord(c) in glyphs else "\N{WHITE SQUARE}" for c in text.expandtabs(4)
    )


@cache
def _glyphs(family: str) -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())


# a panel's title counts for its size and is drawn, and a run's figures repeat their titles
@lru_cache(maxsize=1024)
def wrap(text: str, width: float, points: float, weight: str = "normal") -> str:
    """Wrap `text` to lines of at most `width` inches, at spaces, and inside words that are too wide
    by themselves.
    """
    renderer = RendererAgg(1, 1, DPI)
    font = FontProperties(size=points, weight=weight)

    def fits(line: str) -> bool:
        # Hinting rounds every glyph to whole pixels, so only the renderer gives the true width.
        pixels, _, _ = renderer.get_text_width_height_descent(line, font, False)
        return bool(pixels <= width * DPI)

    lines = []
    for paragraph in text.splitlines():
        words = _GAPS.split(paragraph.strip())
        line = " ".join(words)  # one measurement, which most titles need
        if not fits(line):
            line = ""
            for word in words:
                if fits(f"{line} {word}".strip()):
                    line = f"{line} {word}".strip()
                    continue
                if line:
                    lines.append(line)
                while len(word) > 1 and not fits(word):
                    length = max(
                        1, next(n for n in range(1, len(word) + 1) if not fits(word[:n])) - 1
                    )
                    lines.append(word[:length])
                    word = word[length:]
                line = word
        lines.append(line)
    return "\n".join(lines)
