"""Panels of curves, bars and points: size and drawing. Logarithmic axes have few ticks, written plainly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from denoisers.figures import Bars, Lines, Points
from ditlab.reports.formatting import format_number
from ditlab.reports.rendering.theme import (
    CAPTION_POINTS,
    LINE_WIDTH,
    NAME_CHARACTERS,
    TICK_POINTS,
    PanelSize,
    Theme,
    label_axes,
    light_grid,
    one_line,
    style_axes,
)

LEGEND_INCHES = 1.8
_ALIKE = 5
"""Curves of one dash: the colours from the sixth on are less unlike the first ones."""
_MAX_POINTS = 4000
"""Points of a curve from which on only the lowest and highest of neighbours are drawn."""
_BAR_INCHES = 0.26
_CHARACTER_INCHES = 0.075
_FEW, _MANY = 12.0, 1000.0
"""Ratios of the largest to the smallest value up to which an axis has seven, or three, ticks a decade."""


def lines_size(panel: Lines, dpi: int) -> PanelSize:
    """Compute the size of curves, with a legend of many beside them."""
    if legend_is_outside(panel):
        return PanelSize(5.6 + LEGEND_INCHES, max(3.5, 0.6 + 0.185 * len(panel.curves)))
    return PanelSize(5.6, 3.5)


def legend_is_outside(panel: Lines) -> bool:
    """Return True where the legend would cover the curves."""
    return sum(1 for curve in panel.curves if curve.label) > 6


def draw_lines(panel: Lines, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw curves, their bands and a legend."""
    for index, curve in enumerate(panel.curves):
        colour = theme.curves[index % len(theme.curves)]
        style = ("-", "--", ":", "-.")[index // _ALIKE % 4]
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
        # A line of a single point would be invisible.
        marker = "o" if curve.marked or len(x) == 1 else ""
        axes.plot(
            *_thinned(x, y), color=colour, linestyle=style, linewidth=LINE_WIDTH, marker=marker,
            label=_label(curve.label),
        )  # fmt: skip
        if curve.band is not None:
            band = np.asarray(curve.band, dtype=float)
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.18, linewidth=0)
    light_grid(axes, theme)
    style_axes(axes, theme)
    if panel.log_x:
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis, *_range([curve.x for curve in panel.curves]))
    elif all(_counts(curve.x) for curve in panel.curves):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y:
        axes.set_yscale("log")
        set_log_ticks(axes.yaxis, *_range([curve.y for curve in panel.curves]))
    label_axes(axes, panel.x_label, panel.y_label, theme)
    _legend(axes, [curve.label for curve in panel.curves], legend_is_outside(panel), theme)


def _counts(x: np.ndarray) -> bool:
    """Return True for whole numbers, such as layers: there is no layer 1.5 on the axis."""
    values = np.asarray(x, dtype=float)
    return len(values) > 1 and bool((values == values.round()).all())


def _range(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Smallest and largest finite value; 1 and 1 where there is none."""
    values = np.concatenate([np.asarray(part, dtype=float) for part in parts])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the lowest and the highest of as many neighbours as needed: a long noisy curve looks the same."""
    if len(x) <= _MAX_POINTS or not np.isfinite(y).all():
        return x, y
    size = -(-len(x) // (_MAX_POINTS // 2))
    num = len(x) // size
    parts = y[: num * size].reshape(num, size)
    starts = np.arange(num) * size
    ends = np.stack((starts + parts.argmin(axis=1), starts + parts.argmax(axis=1)))
    keep = np.unique(np.concatenate((ends.ravel(), np.arange(num * size, len(x)), [0, len(x) - 1])))
    return x[keep], y[keep]


def bars_size(panel: Bars, dpi: int) -> PanelSize:
    """Compute the size of bars with their names."""
    names = max((len(_label(name) or "") for name in panel.names), default=0)
    texts = max((len(text) for text in _bar_texts(panel)), default=0)
    return PanelSize(4.4 + _CHARACTER_INCHES * (names + texts), max(1.4, 0.7 + _BAR_INCHES * len(panel.names)))


def draw_bars(panel: Bars, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw horizontal bars, the first on top, with their texts."""
    places = np.arange(len(panel.names))
    values = np.asarray(panel.values, dtype=float)
    axes.barh(places, values, color=theme.curves[0], height=0.72)
    axes.set_yticks(places, [_label(name) or "" for name in panel.names], parse_math=False)
    axes.invert_yaxis()
    texts = _bar_texts(panel)
    for place, (value, text) in enumerate(zip(values, texts, strict=False)):
        axes.annotate(
            text, (value, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=TICK_POINTS, color=theme.text, parse_math=False,
        )  # fmt: skip
    if texts and len(values):
        longest = max(map(len, texts))
        axes.set_xlim(min(0.0, float(values.min())), (float(values.max()) or 1.0) * (1 + 0.02 * (longest + 2)))
    light_grid(axes, theme)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}")
    )
    style_axes(axes, theme)
    label_axes(axes, panel.x_label, panel.y_label, theme)


def _bar_texts(panel: Bars) -> list[str]:
    return [one_line(text, NAME_CHARACTERS) for text in panel.texts]


def points_size(panel: Points, dpi: int) -> PanelSize:
    """Compute the size of points in a plane."""
    return PanelSize(5.6, 4.6)


def draw_points(panel: Points, axes: Axes, dpi: int, theme: Theme) -> None:
    """Draw groups of points in a colour and a marker each, or their texts in place of dots."""
    markers = "osD^vP*Xh<>p"
    for index, group in enumerate(panel.groups):
        colour = theme.curves[index % len(theme.curves)]
        if group.texts:
            axes.scatter(group.x, group.y, s=0)  # makes room
            for x, y, text in zip(group.x, group.y, group.texts, strict=True):
                axes.text(
                    x, y, one_line(text, 12), ha="center", va="center", fontsize=CAPTION_POINTS, color=colour,
                    parse_math=False, clip_on=True,
                )  # fmt: skip
            continue
        axes.scatter(
            group.x, group.y, s=26, color=colour, marker=markers[index % len(markers)], label=_label(group.label),
            linewidths=0.4, edgecolors=theme.background,
        )  # fmt: skip
    light_grid(axes, theme)
    style_axes(axes, theme)
    label_axes(axes, panel.x_label, panel.y_label, theme)
    labels = [group.label for group in panel.groups if not group.texts]
    _legend(axes, labels, sum(map(bool, labels)) > 6, theme)


def _legend(axes: Axes, labels: Sequence[str], outside: bool, theme: Theme) -> None:
    if not any(labels):
        return
    if outside:
        legend = axes.legend(fontsize=TICK_POINTS, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    else:
        legend = axes.legend(
            fontsize=TICK_POINTS, framealpha=0.85, edgecolor="none", facecolor=theme.background, loc="best"
        )
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_color(theme.text)


def _label(label: str) -> str | None:
    """Return a name in a legend or beside a bar; None where there is none."""
    name = one_line(label, NAME_CHARACTERS)
    # Matplotlib skips labels that begin with an underscore.
    return f"\u200a{name}" if name.startswith("_") else name or None


def set_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Set ticks for values from `low` to `high`, above 0; the axis' scale is logarithmic already."""
    subs: tuple[float, ...] = (1,)
    if high < _MANY * low:
        subs = (1, 1.5, 2, 3, 4, 5, 7) if high < _FEW * low else (1, 2, 5)
    axis.set_major_locator(_InnerTicks(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axis.set_minor_locator(NullLocator())


class _InnerTicks(LogLocator):
    """Ticks of a logarithmic axis without those outside its limits, which would be laid out and never shown."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        low, high = 0.99 * min(vmin, vmax), 1.01 * max(vmin, vmax)
        return [tick for tick in super().tick_values(vmin, vmax) if low < tick < high]
