"""Drawing of curves, bars and points. Logarithmic axes have few ticks, written plainly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from ditlab.reports.charts import thin
from ditlab.reports.formatting import format_number
from ditlab.reports.rendering.theme import (
    CAPTION_POINTS,
    LABEL_POINTS,
    LINE_WIDTH,
    NAME_CHARACTERS,
    THEME,
    TICK_POINTS,
    one_line,
    style_axes,
)
from ditlab_models.figures import Bars, Curve, Lines, PointGroup, Points, Tick

MOST_INSIDE = 6
"""Labels of a legend that is drawn over the curves; one of more is beside them."""
_ALIKE = 5
"""Curves of one dash: the colours from the sixth on are less unlike the first ones."""
_MAX_POINTS = 4000
"""Points of a curve from which on only the lowest and highest of neighbours are drawn."""
BAR_INCHES = 0.26
TICKS = {
    3.0: (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    12.0: (1, 1.5, 2, 3, 4, 5, 7),
    1000.0: (1, 2, 5),
}
"""Ticks of a decade by the ratio of the largest to the smallest value up to which a logarithmic
axis has them.
"""
_WEIGHTS: dict[str, dict[str, Any]] = {
    "plain": {"linewidth": LINE_WIDTH},
    "strong": {"linewidth": 3.2, "zorder": 6},
    "faint": {"linewidth": 0.8, "alpha": 0.4},
    "dashed": {"linewidth": 1.0, "alpha": 0.8, "linestyle": (0, (4, 3))},
}
_PALEST = 0.9
"""Cut-off of the colour scale of curves: its last colour, a bright yellow, is invisible on
white.
"""


def draw_lines(panel: Lines, axes: Axes) -> None:
    """Draw curves, their bands and a legend."""
    for index, curve in enumerate(panel.curves):
        colour = _draw_curve(curve, index, axes)
        if curve.band is not None:
            x, y, band = (np.asarray(each, dtype=float) for each in (curve.x, curve.y, curve.band))
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.18, linewidth=0)
    style_axes(
        axes, _axis_label(panel.x_label, panel.log_x), _axis_label(panel.y_label, panel.log_y)
    )
    # whole numbers stay whole: there is no layer 1.5 on the axis
    xs, ys = (
        [np.asarray(getattr(curve, name), dtype=float) for curve in panel.curves] for name in "xy"
    )
    are_whole = all(len(x) > 1 and bool((x == x.round()).all()) for x in xs)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=are_whole))
    axes.xaxis.set_major_formatter(lambda value, _: format_number(value))
    if panel.curves:
        _set_logs(panel, axes, np.concatenate(xs), np.concatenate(ys))
    _legend(axes, [curve.label for curve in panel.curves])


def _set_logs(panel: Lines | Points, axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Make the axes logarithmic that are to be, with few ticks, written plainly; `x` and `y` are
    all values.
    """
    for name, is_log, values in (("x", panel.log_x, x), ("y", panel.log_y, y)):
        if not is_log:
            continue
        axes.set(**{f"{name}scale": "log"})
        values = values[np.isfinite(values)]
        ratio = float(values.max() / values.min()) if len(values) else 1.0
        ticks = next((each for most, each in TICKS.items() if ratio < most), (1,))
        axis = getattr(axes, f"{name}axis")
        axis.set_major_locator(LogLocator(subs=ticks))
        axis.set_major_formatter(lambda value, _: format_number(value))
        axis.set_minor_locator(NullLocator())


def _axis_label(label: str, is_log: bool) -> str:
    """Return an axis's label, which says where its scale is logarithmic: few ticks do not show
    it.
    """
    if not is_log:
        return label
    return f"{label} (log scale)" if label else "log scale"


def _draw_curve(curve: Curve, index: int, axes: Axes) -> Any:
    """Draw a curve's line, a dot at each of few points, and return its colour. A gap stands for
    what is not finite.
    """
    if curve.shade is None:
        number = index if curve.colour is None else curve.colour
        colour: Any = THEME.curves[number % len(THEME.curves)]
        style = {
            "linestyle": ("-", "--", ":", "-.")[number // _ALIKE % 4],
            **_WEIGHTS[curve.weight],
        }
    else:
        colour = THEME.muted
        if not np.isnan(curve.shade):
            colour = THEME.sequential(_PALEST * curve.shade)
        style = {**_WEIGHTS[curve.weight]}
        if curve.weight == "plain":
            style |= {"linewidth": 1.2, "alpha": 0.8}
    if curve.weight == "strong":
        style["path_effects"] = [
            Stroke(linewidth=style["linewidth"] + 1.8, foreground=THEME.background),
            Normal(),
        ]
    x = np.asarray(curve.x, dtype=float)
    y = np.asarray(curve.y, dtype=float)
    # A line of a single point would be invisible.
    marker = "o" if curve.marked or len(x) == 1 else ""
    if len(x) > _MAX_POINTS:
        points = thin(x, y, _MAX_POINTS // 2, _MAX_POINTS)
        if points.is_thinned:
            x = points.steps.repeat(2)
            y = np.stack((points.low, points.high), axis=1).ravel()
    y = np.where(np.isfinite(y), y, np.nan)  # an infinity would stretch the axis without end
    axes.plot(x, y, color=colour, marker=marker, markersize=4, label=_label(curve.label), **style)
    return colour


def draw_colour_bar(axes: Axes, colours: ScalarMappable, label: str) -> None:
    """Draw a colour bar beside `axes`."""
    # An inset keeps to the panel's own box, which an equal aspect makes smaller than the space
    # reserved for it.
    bar = axes.figure.colorbar(colours, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0)))
    bar.ax.tick_params(labelsize=TICK_POINTS, color=THEME.muted, labelcolor=THEME.text)
    bar.ax.set_ylabel(
        one_line(label, 60), fontsize=LABEL_POINTS, color=THEME.text, parse_math=False
    )
    bar.outline.set_visible(False)


def _set_ticks(axis: Axis, ticks: Sequence[Tick]) -> None:
    """Set labelled ticks; labels that would meet are slanted."""
    names = [one_line(tick.label, NAME_CHARACTERS) for tick in ticks]
    style: dict[str, Any] = {}
    if max(map(len, names)) * len(names) > 38:
        style = {"rotation": 28, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks([tick.position for tick in ticks], names, parse_math=False, **style)
    axis.set_ticks([], minor=True)


def draw_bars(panel: Bars, axes: Axes) -> None:
    """Draw horizontal bars, the first on top, with their texts."""
    places = np.arange(len(panel.names))
    values = np.asarray(panel.values, dtype=float)
    axes.barh(places, values, color=THEME.curves[0], height=0.72)
    axes.set_yticks(places, [_label(name) or "" for name in panel.names], parse_math=False)
    axes.invert_yaxis()
    texts = [one_line(text, NAME_CHARACTERS) for text in panel.texts]
    for place, (end, text) in enumerate(zip(values, texts, strict=False)):
        axes.annotate(
            text,
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=TICK_POINTS,
            color=THEME.text,
            parse_math=False,
        )
    if texts and len(values):
        longest = max(map(len, texts))
        most = float(values.max()) or 1.0
        axes.set_xlim(min(0.0, float(values.min())), most * (1 + 0.02 * (longest + 2)))
    style_axes(axes, panel.x_label, panel.y_label, grid="x")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    )


def draw_points(panel: Points, axes: Axes) -> None:
    """Draw groups of points in a colour and a marker each, or their texts in place of dots, and
    lines among them.
    """
    markers = "osD^vP*Xh<>p"
    for index, group in enumerate(panel.groups):
        is_ring = group.weight == "ring"
        colour = THEME.mark if is_ring else THEME.curves[index % len(THEME.curves)]
        style = _point_style(group, markers[index % len(markers)], colour)
        axes.scatter(
            group.x, group.y, label=None if style["s"] == 0 else _label(group.label), **style
        )
        for x, y, text in zip(group.x, group.y, group.texts, strict=False):
            axes.annotate(
                one_line(text, 12),
                (x, y),
                (0, -14 if is_ring else 0),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=CAPTION_POINTS,
                fontweight="bold" if is_ring else "normal",
                color=colour,
                parse_math=False,
                annotation_clip=True,
            )
    for curve in panel.curves:
        axes.plot(
            curve.x,
            curve.y,
            color=THEME.mark,
            label=_label(curve.label),
            zorder=2,
            **_WEIGHTS[curve.weight],
        )
    style_axes(
        axes, _axis_label(panel.x_label, panel.log_x), _axis_label(panel.y_label, panel.log_y)
    )
    if panel.x_ticks:
        _set_ticks(axes.xaxis, panel.x_ticks)
    if panel.groups:
        x, y = (
            np.concatenate([np.asarray(getattr(group, name)) for group in panel.groups])
            for name in "xy"
        )
        _set_logs(panel, axes, x, y)
    labels = [group.label for group in panel.groups] + [curve.label for curve in panel.curves]
    _legend(axes, labels, is_above=bool(panel.curves))
    if panel.curves:
        axes.margins(0.04, 0.12)


def _point_style(group: PointGroup, marker: str, colour: Any) -> dict[str, Any]:
    if group.weight == "ring":
        return {
            "s": 100,
            "facecolors": "none",
            "edgecolors": colour,
            "linewidths": 2.0,
            "zorder": 5,
        }
    if group.texts:
        return {"s": 0}  # makes room
    style = {
        "marker": marker,
        "linewidths": 0.4,
        "s": 26,
        "zorder": 3,
        "edgecolors": THEME.background,
        "color": colour,
    }
    if group.weight == "faint":
        style |= {"color": THEME.muted, "s": 18, "alpha": 0.6}
    return style


def _legend(axes: Axes, labels: Sequence[str], is_above: bool = False) -> None:
    if not any(labels):
        return
    place: dict[str, Any] = {
        "framealpha": 0.85,
        "edgecolor": "none",
        "facecolor": THEME.background,
        "loc": "best",
    }
    if is_above:  # where it covers no point
        place = {
            "frameon": False,
            "loc": "lower right",
            "bbox_to_anchor": (1.0, 1.0),
            "ncols": len(labels),
            "columnspacing": 1.2,
            "borderaxespad": 0.1,
        }
    elif sum(map(bool, labels)) > MOST_INSIDE:
        place = {"frameon": False, "loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    for text in axes.legend(fontsize=TICK_POINTS, labelcolor=THEME.text, **place).get_texts():
        text.set_parse_math(False)


def _label(label: str) -> str | None:
    """Return a name in a legend or beside a bar; None where there is none."""
    name = one_line(label, NAME_CHARACTERS)
    # Matplotlib skips labels that begin with an underscore.
    if name.startswith("_"):
        return f"\u200a{name}"
    return name or None
