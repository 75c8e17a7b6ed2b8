"""Vector pictures of figures: SVG and PDF, the same bytes for the same figure.

Text is drawn as outlines, so that a picture looks alike wherever it is opened; its title and its alternative text stand
in the file as text. Nothing in a file refers to anything outside it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG

from denoisers.figures import Figure
from ditlab.reports.rendering.plain_text import TITLE_CHARACTERS, one_line
from ditlab.reports.rendering.render import draw_canvas, save_figure
from ditlab.reports.rendering.theme import LIGHT, THEMES, Theme, ThemeName
from ditlab.storage.files import write_whole

PictureFormat = Literal["png", "svg", "pdf"]
FORMATS: tuple[PictureFormat, ...] = ("png", "svg", "pdf")

_SETTINGS = {"svg.hashsalt": "ditlab", "svg.fonttype": "path", "svg.image_inline": True, "pdf.fonttype": 42}
_lock = threading.Lock()
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def save_formats(
    figure: Figure,
    stem: Path,
    formats: tuple[PictureFormat, ...] = ("png",),
    themes: tuple[ThemeName, ...] = ("light",),
) -> list[Path]:
    """Write the figure in each format and theme, `STEM.png` and `STEM-dark.png`; return the paths, in this order.

    An animation's `png` is a GIF with a still PNG beside it; its other formats hold the still. Makes folders as needed
    and replaces files atomically.
    """
    files = []
    for name in themes:
        theme = THEMES[name]
        place = stem if theme is LIGHT else stem.with_name(f"{stem.name}-{theme.name}")
        for kind in formats:
            path = place.with_name(f"{place.name}.{kind}")
            files.append(save_figure(figure, path, theme) if kind == "png" else _save(figure, path, kind, theme))
    return files


def to_svg(figure: Figure, theme: Theme = LIGHT) -> str:
    """Draw the figure as an SVG document, with its title and its alternative text."""
    content = BytesIO()
    with _settings():
        FigureCanvasSVG(draw_canvas(figure, theme)).print_svg(content, metadata={"Date": None})
    drawing = content.getvalue().decode()
    title = _as_xml(one_line(figure.title, TITLE_CHARACTERS))
    start = drawing.index("<svg")
    end = drawing.index(">", start)
    # The document type and the metadata name addresses on the web.
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing[end + 1 :], count=1, flags=re.DOTALL)
    heading = f"\n <title>{title}</title>" if title else ""
    description = f"\n <desc>{_as_xml(figure.alternative_text)}</desc>"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{drawing[start:end]} role="img">{heading}{description}{body}'


def to_pdf(figure: Figure, theme: Theme = LIGHT) -> bytes:
    """Draw the figure as a PDF of one page."""
    content = BytesIO()
    metadata = {"Creator": None, "Producer": None, "CreationDate": None, "Title": one_line(figure.title, 100) or None}
    with _settings():
        FigureCanvasPdf(draw_canvas(figure, theme)).print_pdf(content, metadata=metadata)
    return content.getvalue()


def _save(figure: Figure, path: Path, kind: PictureFormat, theme: Theme) -> Path:
    content = to_svg(figure, theme).encode() if kind == "svg" else to_pdf(figure, theme)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, content)


def _as_xml(text: str) -> str:
    """Escape markup and leave out characters that no XML document may hold."""
    return escape(_NOT_XML.sub("", text))


@contextmanager
def _settings() -> Iterator[None]:
    """Set what the vector formats read from matplotlib's global settings; one thread at a time, others keep theirs."""
    settings: Any = matplotlib.rcParams  # typed by its keys, one by one
    with _lock:
        before = {name: settings[name] for name in _SETTINGS}
        settings.update(_SETTINGS)
        try:
            yield
        finally:
            settings.update(before)
