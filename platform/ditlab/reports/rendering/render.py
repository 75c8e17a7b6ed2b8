"""Rendering of `ditlab_models.figures.Figure` to PNG, GIF, an array, SVG or PDF, the latter two
with the same bytes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ditlab.reports.rendering.panels import draw_panel, panel_size
from ditlab.reports.rendering.theme import (
    DPI,
    THEME,
    TITLE_CHARACTERS,
    TITLE_POINTS,
    PanelSize,
    one_line,
    wrap,
)
from ditlab.storage.files import write_whole
from ditlab_models.figures import Figure, Heatmap

_PNG_LEVEL = 4
"""zlib's level: a third less time than at the usual 6, for files that are 3 % larger."""
_PAD = 0.07
"""Inches around each panel."""
_BAR_GAP = 0.3
"""Inches between a colour bar and what stands at its right: its unit would stand beside the next
map's label as if it were one."""
_LAST_FRAME_SECONDS = 2.0
"""Duration of an animation's last frame, which takes longer to look at than the others."""
PictureFormat = Literal["png", "svg", "pdf"]
FORMATS: tuple[PictureFormat, ...] = ("png", "svg", "pdf")
_SETTINGS: Any = {
    "svg.hashsalt": "ditlab",
    "svg.fonttype": "path",
    "svg.image_inline": True,
    "pdf.fonttype": 42,
}
_lock = threading.Lock()
"""Held while the vector formats read matplotlib's global settings."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the picture and return its path.

    A figure without frames becomes `path` with the suffix `.png`. A figure with frames becomes an
    endless `.gif`, which is returned, and a still `.png` beside it. Makes folders as needed and
    replaces files atomically.
    """
    stem = path.with_suffix("") if path.suffix.lower() in {".png", ".gif"} else path
    still = stem.with_name(stem.name + ".png")
    content = BytesIO()
    drawn = {id(frame): Image.fromarray(to_image(frame)) for frame in figure.frames}
    if figure.panels or not drawn:
        last = Image.fromarray(to_image(figure))
    else:
        last = drawn[id(figure.frames[-1])]
    texts = png_texts(one_line(figure.title, TITLE_CHARACTERS), figure.alternative_text)
    last.save(content, format="PNG", dpi=(DPI, DPI), compress_level=_PNG_LEVEL, pnginfo=texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(still, content.getvalue())
    if not drawn:
        return still
    # All frames of a GIF have one size: the page's colour is at their right and bottom.
    width, height = (max(frame.size[side] for frame in drawn.values()) for side in (0, 1))
    pages = []
    for frame in figure.frames:
        page = Image.new("RGB", (width, height), THEME.background)
        page.paste(drawn[id(frame)])
        pages.append(page)
    durations = [round(1000 * figure.seconds_per_frame)] * len(pages)
    durations[-1] = round(1000 * max(_LAST_FRAME_SECONDS, figure.seconds_per_frame))
    content = BytesIO()
    pages[0].save(
        content, format="GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0
    )
    return write_whole(stem.with_name(stem.name + ".gif"), content.getvalue())


def png_texts(title: str, description: str) -> PngInfo:
    """Text chunks of a PNG with its title and its alternative text."""
    texts = PngInfo()
    texts.add_itxt("Title", title)
    texts.add_itxt("Description", description)
    return texts


def to_image(figure: Figure) -> np.ndarray:
    """Draw the still picture as an array, (height, width, 3) uint8; the last frame where the figure
    has no panels.
    """
    agg = FigureCanvasAgg(draw_canvas(figure))
    agg.draw()
    return np.ascontiguousarray(np.asarray(agg.buffer_rgba())[..., :3])


def draw_canvas(figure: Figure) -> Canvas:
    """Lay panels out in rows of `figure.columns`, as wide as a column's largest; without panels,
    the last frame.
    """
    if figure.frames and not figure.panels:
        figure = figure.frames[-1]
    sizes = [panel_size(panel) for panel in figure.panels] or [PanelSize(4.0, 1.0, 0.0)]
    num_columns = max(1, min(figure.columns, len(sizes)))
    columns = [sizes[column::num_columns] for column in range(num_columns)]
    rows = [sizes[start : start + num_columns] for start in range(0, len(sizes), num_columns)]
    # The layout gives all panels of a column the room that the labels of one need: ratios are those
    # of what is left.
    inner = _largest(columns, "inner")
    heights = _largest(rows, "height")

    width = sum(inner) + sum(_largest(columns, "margin"))
    title = wrap(one_line(figure.title, TITLE_CHARACTERS), width - 0.2, TITLE_POINTS, "bold")
    title_height = 0.1 + 0.24 * (title.count("\n") + 1) if title else 0.0
    gap = 2 * _PAD
    if num_columns > 1 and any(isinstance(panel, Heatmap) for panel in figure.panels):
        gap = _BAR_GAP
    width += (gap - 2 * _PAD) * num_columns
    # inches; a share
    layout = ConstrainedLayoutEngine(w_pad=_PAD, h_pad=0.06, wspace=gap * num_columns / width)
    canvas = Canvas(figsize=(width, sum(heights) + title_height), dpi=DPI, layout=layout)
    canvas.set_facecolor(THEME.background)
    if title:
        canvas.suptitle(
            title, fontsize=TITLE_POINTS, fontweight="bold", color=THEME.text, parse_math=False
        )
    grid = canvas.add_gridspec(len(rows), num_columns, width_ratios=inner, height_ratios=heights)
    for index, panel in enumerate(figure.panels):
        axes = canvas.add_subplot(grid[index // num_columns, index % num_columns])
        draw_panel(panel, axes, sizes[index])
    return canvas


def _largest(groups: list[list[PanelSize]], name: str) -> list[float]:
    """Largest of a field of the sizes in each group."""
    return [max(getattr(size, name) for size in group) for group in groups]


def save_formats(
    figure: Figure, stem: Path, formats: Sequence[PictureFormat] = ("png",)
) -> list[Path]:
    """Write the figure in each format, `STEM.png`; return the paths, in this order.

    An animation's `png` is a GIF with a still PNG beside it; its other formats hold the still.
    Makes folders as needed and replaces files atomically.
    """
    files = []
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        if kind == "png":
            files.append(save_figure(figure, path))
        elif kind == "svg":
            files.append(write_whole(path, to_svg(figure).encode()))
        else:
            files.append(write_whole(path, to_pdf(figure)))
    return files


def to_svg(figure: Figure) -> str:
    """Draw the figure as an SVG document, with its title and its alternative text."""
    content = BytesIO()
    with _lock, matplotlib.rc_context(_SETTINGS):
        FigureCanvasSVG(draw_canvas(figure)).print_svg(content, metadata={"Date": None})
    drawing = content.getvalue().decode()
    title = _as_xml(one_line(figure.title, TITLE_CHARACTERS))
    start = drawing.index("<svg")
    end = drawing.index(">", start)
    # The document type and the metadata name addresses on the web.
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing[end + 1 :], count=1, flags=re.DOTALL)
    heading = f"\n <title>{title}</title>" if title else ""
    description = f"\n <desc>{_as_xml(figure.alternative_text)}</desc>"
    opening = f'<?xml version="1.0" encoding="utf-8"?>\n{drawing[start:end]} role="img">'
    return f"{opening}{heading}{description}{body}"


def to_pdf(figure: Figure) -> bytes:
    """Draw the figure as a PDF of one page."""
    content = BytesIO()
    metadata = {
        "Creator": None,
        "Producer": None,
        "CreationDate": None,
        "Title": one_line(figure.title, 100) or None,
    }
    with _lock, matplotlib.rc_context(_SETTINGS):
        FigureCanvasPdf(draw_canvas(figure)).print_pdf(content, metadata=metadata)
    return content.getvalue()


def _as_xml(text: str) -> str:
    """Escape markup and drop characters that no XML document may hold."""
    return escape(_NOT_XML.sub("", text))
