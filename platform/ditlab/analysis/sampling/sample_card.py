"""Samples as notebooks show them: pictures with their captions, texts as text, completed rows as logos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO

import numpy as np
from markupsafe import Markup
from PIL import Image

from denoisers.figures import ImageGrid
from denoisers.figures import Text as TextPanel
from ditlab.analysis.plot import Plot
from ditlab.notebook_html import card, code, paragraph, picture, row_of, shown, table

MOST_PICTURES = 64
MOST_TEXTS = 16
MOST_WINDOWS = 3
MOST_REGIONS = 8
"""Completed rows of a window that are drawn."""
MOST_NAMES = 4
"""Features of a logo."""
_WIDEST = 256  # pixels of a picture's longer side
_MEASURED = "measured:"


def sample_card(plot: Plot, num: int, origin: Mapping[str, str], columns: Mapping[str, np.ndarray]) -> Markup:
    """All samples, up to a number that a page carries; `columns` is the table of completed rows, or empty."""
    about = ", ".join(f"{name} {value}" for name, value in origin.items())
    parts: list[Markup] = []
    for panel in plot.figure.panels:
        if isinstance(panel, ImageGrid):
            parts += _pictures(panel)
        elif isinstance(panel, TextPanel):
            parts += _texts(panel)
    if columns:
        parts += _logos(columns)
    if not all(isinstance(panel, ImageGrid | TextPanel) for panel in plot.figure.panels):
        parts.append(picture(plot._repr_png_(), plot.figure.alternative_text))
    return card(f"{num:,} sample{'' if num == 1 else 's'}", about, parts)


def _pictures(grid: ImageGrid) -> Iterator[Markup]:
    shown_images = grid.images[:MOST_PICTURES]
    texts = [str(text) for text in grid.captions[: len(shown_images)]] or [""] * len(shown_images)
    pictures = []
    for number, (image, text) in enumerate(zip(shown_images, texts, strict=True)):
        png, width = _png(image)
        style = f"width:{max(width, 48)}px;max-width:100%;image-rendering:pixelated"
        pictures.append(picture(png, f"sample {number}{': ' if text else ''}{text}", text, style))
    yield row_of(pictures)
    if left := len(grid.images) - len(pictures):
        yield paragraph(f"and {left:,} more, which .images and .save() give")


def _png(image: np.ndarray) -> tuple[bytes, int]:
    """A picture as PNG, of at most 256 pixels a side, and its width."""
    made = Image.fromarray(np.clip(np.rint(255 * image), 0, 255).astype(np.uint8))
    made.thumbnail((_WIDEST, _WIDEST))
    content = BytesIO()
    made.save(content, format="PNG")
    return content.getvalue(), made.width


def _texts(panel: TextPanel) -> Iterator[Markup]:
    if panel.title:
        yield paragraph(panel.title)
    for text in panel.passages[:MOST_TEXTS]:
        yield code(text)
    if (left := len(panel.passages) - MOST_TEXTS) > 0:
        yield paragraph(f"and {left:,} more, which .texts and .save() give")


def _logos(columns: Mapping[str, np.ndarray]) -> Iterator[Markup]:
    """The largest features of completed rows, beside the measured ones: the larger a value, the larger its name."""
    measured = [name for name in columns if name.startswith(_MEASURED)]
    names = [name.removeprefix(_MEASURED) for name in measured]
    imputed = list(columns)[-2 * len(names) : -len(names)] if names else []
    masked = np.asarray(columns["masked"], dtype=bool)
    largest = max((float(np.max(np.abs(columns[name]))) for name in measured), default=0.0) or 1.0
    for window in np.unique(columns["window"])[:MOST_WINDOWS].tolist():
        rows = np.flatnonzero((columns["window"] == window) & masked)[:MOST_REGIONS].tolist()
        first = int(np.flatnonzero(columns["window"] == window)[0])
        lines = [
            [title, *(_logo(names, [float(columns[key][row]) for key in keys], largest) for row in rows)]
            for title, keys in (("imputed", imputed), ("measured", measured))
        ]
        heads = ["", *(f"region {row - first + 1}" for row in rows)]
        count = int((masked & (columns["window"] == window)).sum())
        yield table(heads, lines, f"Window {window + 1}: {len(rows)} of {count} masked regions, their largest features")


def _logo(names: Sequence[str], values: Sequence[float], largest: float) -> Markup:
    order = sorted(range(len(values)), key=lambda i: -values[i])[:MOST_NAMES]
    lines = (
        Markup("<div style='font-size:{:.2f}em;line-height:1.1'>{}</div>").format(
            0.6 + 1.0 * min(1.0, max(0.0, values[i]) / largest), shown(names[i], 40)
        )
        for i in order
        if values[i] > 0
    )
    return Markup("").join(lines)
