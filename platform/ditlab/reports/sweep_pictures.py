"""Samples of all trials of a sweep by step: a row a trial, the same noise and condition in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from ditlab.reports.formatting import shorten
from ditlab.reports.page import Slide, data_uri
from ditlab.reports.rendering.render import save_figure
from ditlab.secrets import hide
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, read_plain
from ditlab_models.figures import Figure, ImageGrid

COLUMNS = 8
"""Samples of a row."""
MOST_ROWS, MOST_STEPS = 16, 20
"""Best trials, and steps, that a page shows."""
_LONGEST_TITLE, _LONGEST_PASSAGE = 100, 600
_LARGEST = 32 * MIB


def save_strip(figure: Figure, path: Path) -> Path | None:
    """Write the first samples of a grid side by side, without margins, as a PNG; None for a figure without a grid.

    Raises OSError where the disk refuses.
    """
    grid = next((panel for panel in figure.panels if isinstance(panel, ImageGrid)), None)
    if grid is None or not len(grid.images):
        return None
    images = np.nan_to_num(np.asarray(grid.images[:COLUMNS], dtype=float))
    content = BytesIO()
    pixels = np.rint(255 * np.clip(np.concatenate(list(images), axis=1), 0, 1)).astype(np.uint8)
    Image.fromarray(pixels).save(content, format="PNG")
    return write_whole(path, content.getvalue())


def strip_path(media: Path, step: int) -> Path:
    """File of a run's strip of samples."""
    return media / f"strip-{step:08d}.png"


def write_rows(rows: Sequence[tuple[str, Path]], folder: Path) -> dict[int, Path | Slide]:
    """Write a picture of all trials' samples for each step, `samples-STEP.png` in `folder`; return them by step.

    `rows` are titles and folders of trials' pictures, the best trial first. A step has the rows of the trials that drew
    samples at it. Texts make a slide and no file. Raises OSError where the disk refuses.
    """
    drawn = [(title, media, {int(path.stem[8:]): path for path in media.glob("samples-????????.png")})
             for title, media in rows]  # fmt: skip
    drawn = [each for each in drawn if each[2]][:MOST_ROWS]
    steps = sorted({step for *_, pictures in drawn for step in pictures})
    found: dict[int, Path | Slide] = {}
    for place in np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).round()):
        step = steps[int(place)]
        panels = []
        passages = []
        for title, media, pictures in (each for each in drawn if step in each[2]):
            name = shorten(title, _LONGEST_TITLE)
            with suppress(OSError):
                text = hide(read_plain(pictures[step].with_suffix(".txt"), _LARGEST).decode(errors="replace"))
                passages.append(f"{name}\n\n{text[:_LONGEST_PASSAGE].rstrip()}")
                continue
            with suppress(OSError, ValueError, SyntaxError):  # a picture that is gone or damaged leaves its row out
                panels.append(_row(strip_path(media, step), pictures[step], name))
        if passages:
            found[step] = Slide(f"step {step:,}", alternative=f"Samples of step {step:,}", text="\n\n".join(passages))
        elif panels:
            alt = f"Samples of step {step:,}, a row a trial, the same noise in a column"
            found[step] = save_figure(Figure(panels, columns=1, alt=alt), folder / f"samples-{step:08d}.png")
    return found


def as_slides(pictures: Mapping[int, Path | Slide]) -> Sequence[Slide]:
    """Turn pictures by step into slides. Raises OSError where one cannot be read."""

    def slide(step: int, made: Path | Slide) -> Slide:
        if isinstance(made, Slide):
            return made
        label = f"step {step:,}"
        return Slide(label, data_uri(read_plain(made, _LARGEST), made.name), f"Samples of all trials, {label}")

    return [slide(step, made) for step, made in sorted(pictures.items())]


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
