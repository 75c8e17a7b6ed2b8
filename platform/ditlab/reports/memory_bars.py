"""Picture of memory by setting: a stacked bar for each, against what a device has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from ditlab.reports.rendering.render import DPI, save_canvas
from ditlab.reports.rendering.theme import LIGHT, TICK_POINTS, TITLE_POINTS, Theme, label_axes, light_grid, style_axes

GIB = 2**30


@dataclass(frozen=True)
class MemoryBar:
    """Memory under one setting."""

    name: str
    parts: Mapping[str, int]
    """Bytes by what holds them, in the order of the stack; the same names in every bar."""
    is_recommended: bool = False


def draw_memory(bars: Sequence[MemoryBar], limit: int, title: str, path: Path, theme: Theme = LIGHT) -> Path:
    """Draw the bars, the first on top, and a line at `limit` bytes; write the PNG `path` and return it.

    Raises OSError where the disk refuses.
    """
    canvas = Canvas(figsize=(8.4, 1.7 + 0.3 * len(bars)), dpi=DPI, layout="constrained")
    canvas.set_facecolor(theme.background)
    axes = canvas.add_subplot()
    starts = [0.0] * len(bars)
    for index, name in enumerate(bars[0].parts):
        widths = [bar.parts[name] / GIB for bar in bars]
        axes.barh(range(len(bars)), widths, left=starts, height=0.7, color=theme.curves[index], label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    names = [f"{bar.name}  \N{BLACK LEFT-POINTING TRIANGLE}" if bar.is_recommended else bar.name for bar in bars]
    axes.set_yticks(range(len(bars)), names, parse_math=False)
    axes.invert_yaxis()
    largest = max(starts)
    if limit / GIB < 4 * largest:
        axes.axvline(limit / GIB, color=theme.text, linewidth=1.4, linestyle="--", label="memory of the device")
    for place, width in enumerate(starts):
        axes.annotate(
            f"{width:,.3g}", (width, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=TICK_POINTS, color=theme.text,
        )  # fmt: skip
    axes.margins(x=0.08)
    light_grid(axes, theme)
    axes.grid(False, axis="y")
    style_axes(axes, theme)
    label_axes(axes, "GiB on each worker's device, at its peak", "", theme)
    axes.set_title(title, fontsize=TITLE_POINTS, fontweight="bold", color=theme.text, parse_math=False)
    canvas.legend(loc="outside lower center", ncols=4, fontsize=TICK_POINTS, labelcolor=theme.text, frameon=False)
    about = "; ".join(f"{bar.name}: {sum(bar.parts.values()) / GIB:,.3g} GiB" for bar in bars)
    return save_canvas(canvas, path, f"Stacked bars of memory by setting. {about}. The device has {limit / GIB:,.3g}.")
