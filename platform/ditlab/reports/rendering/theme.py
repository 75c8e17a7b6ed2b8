"""Style of every figure: colours on a light and on a dark page, sizes of text, widths of lines.

Text has a contrast of at least 4.5 with its background, curves of at least 3 (WCAG 2.2, 1.4.3 and 1.4.11). Curves'
colours follow Okabe and Ito's palette, darker or lighter until they reach it. Diverging maps go from blue to orange,
which readers who confuse red and green tell apart, through the colour of the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap

from ditlab.reports.rendering.plain_text import one_line

ThemeName = Literal["light", "dark"]

TITLE_POINTS = 13.0
PANEL_TITLE_POINTS = 11.0
LABEL_POINTS = 9.5
TICK_POINTS = 8.5
CAPTION_POINTS = 8.0
TEXT_POINTS = 9.0
LINE_WIDTH = 1.8
GRID_WIDTH = 0.8
_LABEL_CHARACTERS = 100


@dataclass(frozen=True)
class Theme:
    """Colours of figures on one kind of page."""

    name: ThemeName
    background: str
    text: str
    muted: str
    """Captions and borders of axes."""
    grid: str
    blank: str
    """Cells without a value, and outlines of images."""
    band: str
    """Every second passage of text, and boxes of data."""
    curves: tuple[str, ...]
    boxes: dict[str, tuple[str, str]]
    """(fill, border) of a diagram's boxes by kind."""
    sequential: Colormap
    diverging: Colormap

    @property
    def mark(self) -> str:
        """Colour of highlights."""
        return self.curves[1]


LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1d2329",
    muted="#4a545e",
    grid="#e3e3e3",
    blank="#d5d9dd",
    band="#f4f6f8",
    curves=("#0072B2", "#D55E00", "#00805C", "#B8528A", "#9A6A00", "#2F86BF", "#7F3C8D", "#4D4D4D"),
    boxes={"data": ("#eef1f4", "#4a545e"), "layer": ("#e1effa", "#0072B2"), "condition": ("#fdeee0", "#B85000")},
    sequential=matplotlib.colormaps["viridis"],
    diverging=LinearSegmentedColormap.from_list(
        "blue-white-orange", ["#053d6b", "#1f78b4", "#9ccae6", "#f7f7f7", "#fdbb84", "#d95f0e", "#7f2704"]
    ),
)
DARK = Theme(
    name="dark",
    background="#14181d",
    text="#e8ecf0",
    muted="#b3bcc6",
    grid="#2f363e",
    blank="#3d454e",
    band="#1e242b",
    curves=("#56B4E9", "#FF9147", "#2CC79A", "#E796C2", "#F0C43F", "#8CA8FF", "#C79BE0", "#C4C9CF"),
    boxes={"data": ("#232a32", "#b3bcc6"), "layer": ("#16324a", "#56B4E9"), "condition": ("#46290f", "#FF9147")},
    sequential=matplotlib.colormaps["viridis"],
    diverging=LinearSegmentedColormap.from_list(
        "blue-black-orange", ["#b5e2ff", "#56b4e9", "#1d567d", "#14181d", "#7d3c0c", "#ff9147", "#ffdcbf"]
    ),
)
THEMES: dict[ThemeName, Theme] = {theme.name: theme for theme in (LIGHT, DARK)}


def style_axes(axes: Axes, theme: Theme) -> None:
    """Colour ticks, borders and the background of axes."""
    axes.set_facecolor(theme.background)
    axes.tick_params(labelsize=TICK_POINTS, color=theme.muted, labelcolor=theme.text)
    for spine in axes.spines.values():
        spine.set_color(theme.muted)


def label_axes(axes: Axes, x_label: str, y_label: str, theme: Theme) -> None:
    """Set the labels of axes as plain text, each on one line."""
    x_label, y_label = (one_line(label, _LABEL_CHARACTERS) for label in (x_label, y_label))
    axes.set_xlabel(x_label, fontsize=LABEL_POINTS, color=theme.text, parse_math=False)
    axes.set_ylabel(y_label, fontsize=LABEL_POINTS, color=theme.text, parse_math=False)


def light_grid(axes: Axes, theme: Theme) -> None:
    """Draw a grid behind the data, and no border at the top and the right."""
    axes.grid(True, color=theme.grid, linewidth=GRID_WIDTH)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def contrast(first: str, second: str) -> float:
    """Contrast of two colours `#rrggbb`, from 1 to 21 (WCAG 2.2)."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(red: float, green: float, blue: float) -> str:
    """Return black or white, whichever is easier to read on a colour of [0, 1]."""
    return "#000000" if _luminance_of(red, green, blue) > 0.179 else "#ffffff"


def _luminance(colour: str) -> float:
    return _luminance_of(*(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)))


def _luminance_of(red: float, green: float, blue: float) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
