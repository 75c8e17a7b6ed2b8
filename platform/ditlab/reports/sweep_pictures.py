"""Newest samples of all trials of a sweep: a row a trial, the same noise and condition in a
column.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from ditlab.reports.formatting import shorten
from ditlab.reports.page import Code, ImageFile
from ditlab.reports.rendering.render import save_figure
from ditlab.secrets import hide
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, read_plain
from ditlab_models.figures import Figure, ImageGrid
from ditlab_models.pixels import to_pixels

COLUMNS = 8
"""Samples of a row."""
MOST_ROWS = 16
"""Best trials that a page shows."""
CAPTION = (
    "A row a trial, the best first; trials of one seed began from the same noise in each column."
)
_LONGEST_TITLE = 100
_LONGEST_PASSAGE = 600
_LARGEST = 32 * MIB


def save_strip(figure: Figure, path: Path) -> Path | None:
    """Write the first samples of a grid side by side, without margins, as a PNG; None for a figure
    without a grid.

    Raises OSError where the disk refuses.
    """
    grid = next((panel for panel in figure.panels if isinstance(panel, ImageGrid)), None)
    if grid is None or not len(grid.images):
        return None
    images = np.asarray(grid.images[:COLUMNS], dtype=float)
    content = BytesIO()
    pixels = to_pixels(np.concatenate(images, axis=1))
    Image.fromarray(pixels).save(content, format="PNG")
    return write_whole(path, content.getvalue())


def strip_path(media: Path, step: int) -> Path:
    """File of a run's strip of samples."""
    return media / f"strip-{step:08d}.png"


def write_samples(rows: Sequence[tuple[str, Path]], path: Path) -> ImageFile | Code | None:
    """Write a picture of all trials' newest samples, and return it as part of a page; texts as
    such, without a file.

    `rows` are titles and folders of trials' pictures, the best trial first. None where there are
    none. Raises OSError where the disk refuses.
    """
    panels: list[ImageGrid] = []
    passages: list[str] = []
    for title, media in rows:
        pictures = sorted(media.glob("samples-????????.png"))
        if not pictures or len(panels) + len(passages) == MOST_ROWS:
            continue
        newest = pictures[-1]
        step = int(newest.stem[8:])
        name = shorten(f"{title}, step {step:,}", _LONGEST_TITLE)
        with suppress(OSError):
            text = hide(read_plain(newest.with_suffix(".txt"), _LARGEST).decode(errors="replace"))
            passages.append(f"{name}\n\n{text[:_LONGEST_PASSAGE].rstrip()}")
            continue
        # a picture that is gone or damaged has no row
        with suppress(OSError, ValueError, SyntaxError):
            panels.append(_row(strip_path(media, step), newest, name))
    if passages:
        return Code("\n\n".join(passages))
    if not panels:
        return None
    alt = "Newest samples, a row a trial, the same noise in a column"
    return ImageFile(save_figure(Figure(panels, columns=1, alt=alt), path), CAPTION)


def _row(strip: Path, picture: Path, name: str) -> ImageGrid:
    """Make a trial's row: the samples of its strip, or its whole picture where it has none."""
    try:
        pixels = _pixels(strip)
    except FileNotFoundError:
        return ImageGrid(_pixels(picture)[None], columns=1, title=name)
    num = COLUMNS if pixels.shape[1] % COLUMNS == 0 else 1
    return ImageGrid(np.stack(np.split(pixels, num, axis=1)), columns=COLUMNS, title=name)


def _pixels(picture: Path) -> np.ndarray:
    with Image.open(BytesIO(read_plain(picture, _LARGEST)), formats=("PNG",)) as image:
        return np.asarray(image.convert("RGB")) / 255
