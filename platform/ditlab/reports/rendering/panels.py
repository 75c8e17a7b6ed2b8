"""Size and drawing of each kind of panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from denoisers.figures import Bars, Diagram, Heatmap, ImageGrid, Lines, Panel, Points, Text
from ditlab.reports.rendering.charts import (
    LEGEND_INCHES,
    bars_size,
    draw_bars,
    draw_lines,
    draw_points,
    legend_is_outside,
    lines_size,
    points_size,
)
from ditlab.reports.rendering.diagram import diagram_size, draw_diagram
from ditlab.reports.rendering.heatmap import draw_heatmap, heatmap_margin, heatmap_size
from ditlab.reports.rendering.image_grid import GridLayout
from ditlab.reports.rendering.panel_size import PanelSize
from ditlab.reports.rendering.plain_text import TITLE_CHARACTERS, one_line
from ditlab.reports.rendering.text_panel import draw_text, text_size
from ditlab.reports.rendering.theme import LIGHT, PANEL_TITLE_POINTS, Theme
from ditlab.reports.rendering.wrapping import wrap

COLOURS = LIGHT.curves
"""Colours of curves on a light page."""

_TITLE_INCHES = PANEL_TITLE_POINTS * 1.25 / 72


def panel_size(panel: Panel, dpi: int) -> PanelSize:
    """Compute the size that a panel needs, title and labels included, in inches."""
    size, _ = _BY_KIND[type(panel)]
    width, height = size(panel, dpi)
    title = _title(panel, width, dpi)
    return PanelSize(width, height + (_TITLE_INCHES * (title.count("\n") + 1) + 0.1 if title else 0.0))


def draw_panel(panel: Panel, axes: Axes, size: PanelSize, dpi: int, theme: Theme = LIGHT) -> None:
    """Draw a panel into its axes."""
    _, draw = _BY_KIND[type(panel)]
    draw(panel, axes, dpi, theme)
    if panel.title:
        title = _title(panel, size.width, dpi)
        axes.set_title(title, fontsize=PANEL_TITLE_POINTS, pad=6, color=theme.text, parse_math=False)


def panel_margin(panel: Panel) -> float:
    """Return the width in inches of what stands beside a panel's axes: labels, a colour bar, a legend."""
    if isinstance(panel, Heatmap):
        return heatmap_margin(panel)
    if isinstance(panel, Lines) and legend_is_outside(panel):
        return 0.9 + LEGEND_INCHES
    return 0.9 if isinstance(panel, Lines | Points | Bars) else 0.1


def _title(panel: Panel, width: float, dpi: int) -> str:
    """Wrap the title to the width of the axes, on which it is centred."""
    return wrap(one_line(panel.title, TITLE_CHARACTERS), width - panel_margin(panel), PANEL_TITLE_POINTS, dpi)


def _grid_size(panel: ImageGrid, dpi: int) -> PanelSize:
    layout = GridLayout(panel, dpi)
    # A lone narrow strip would leave no room for its title.
    return PanelSize(max(layout.width / dpi + 0.15, 2.4 if panel.title else 1.0), layout.height / dpi + 0.15)


def _draw_grid(panel: ImageGrid, axes: Axes, dpi: int, theme: Theme) -> None:
    layout = GridLayout(panel, dpi)
    axes.imshow(layout.draw(theme), interpolation="none", aspect="equal", origin="upper")
    for caption in layout.captions():
        axes.text(
            caption.x, caption.y, caption.text, ha="center", va="baseline", fontsize=layout.caption_points,
            color=theme.muted, parse_math=False,
        )  # fmt: skip
    axes.set_axis_off()


_BY_KIND: dict[type, tuple[Callable[[Any, int], PanelSize], Callable[[Any, Axes, int, Theme], None]]] = {
    ImageGrid: (_grid_size, _draw_grid),
    Heatmap: (heatmap_size, draw_heatmap),
    Lines: (lines_size, draw_lines),
    Bars: (bars_size, draw_bars),
    Points: (points_size, draw_points),
    Diagram: (diagram_size, draw_diagram),
    Text: (text_size, draw_text),
}
