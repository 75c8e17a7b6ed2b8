"""Samples that were drawn, as tensors, images, text and files, and as notebooks show them. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from denoisers.contract import PicturingSampler, RealRows, Samples
from denoisers.figures import Figure, ImageGrid
from denoisers.figures import Text as TextPanel
from ditlab.analysis.plot import Plot
from ditlab.analysis.sample_request import save_pictures
from ditlab.analysis.user_errors import output_folder, writing
from ditlab.notebook_html import card, code, never_failing, paragraph, picture, row_of, shown, table
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.text_file import save_table, save_text

MOST_PICTURES = 64
MOST_TEXTS = 16
MOST_WINDOWS = 3
MOST_REGIONS = 8
"""Completed rows of a window that are drawn."""
MOST_NAMES = 4
"""Features of a completed row."""
_WIDEST = 256  # pixels of a picture's longer side
_MEASURED = "measured:"


@dataclass(frozen=True)
class SampleSet:
    """Samples drawn from the weights of a run or an export, in the host's memory. Notebooks show them as a picture."""

    samples: Samples
    sampler: Any
    """The family's sampler."""
    step: int
    """Optimiser step of the weights."""
    origin: Mapping[str, str]
    """Where the weights come from, by name: run, step."""
    folder: Path
    """Default folder of `save`."""
    rows: RealRows | None = None
    """The rows that were completed; None where samples were drawn from noise alone."""
    table_facts: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the table of completed rows."""

    @property
    def values(self) -> Tensor:
        """The samples, (num, *sample shape) in the model's own range: images (num, channels, height, width) in [-1, 1],
        text (num, length) token ids."""
        return self.samples.values

    @property
    def conditions(self) -> dict[str, Tensor]:
        """SampleConditions of each sample by name, (num, ...) each; empty for unconditional samples."""
        return self.samples.conditions

    @property
    def trajectory(self) -> Tensor | None:
        """(frames, num, *sample shape), the first frame pure noise; None unless requested."""
        return self.samples.trajectory

    @cached_property
    def plot(self) -> Plot:
        """All samples in one picture, as the family shows them."""
        return Plot(self.sampler.show(self.samples))

    @property
    def animation(self) -> Plot:
        """The samples over the solver steps. Raises ValueError for samples without a trajectory."""
        if self.samples.trajectory is None:
            raise ValueError("these samples have no trajectory; draw them with trajectory=True.")
        return Plot(trajectory_figure(self.sampler, self.samples))

    @property
    def images(self) -> list[Image.Image]:
        """One image a sample; empty for families that draw no images."""
        if isinstance(self.sampler, PicturingSampler):
            return [Image.fromarray(picture.pixels) for picture in self.sampler.pictures(self.samples)]
        grids = [panel for panel in self.plot.figure.panels if isinstance(panel, ImageGrid)]
        pixels = [np.clip(np.rint(255 * image), 0, 255).astype(np.uint8) for grid in grids for image in grid.images]
        return [Image.fromarray(image) for image in pixels]

    @property
    def texts(self) -> list[str]:
        """One text a sample; empty for families that write no text."""
        return [text for panel in self.plot.figure.panels if isinstance(panel, TextPanel) for text in panel.passages]

    @property
    def table(self) -> dict[str, np.ndarray]:
        """The completed rows as columns of equal length; empty where no rows were completed."""
        found: dict[str, np.ndarray] = {} if self.rows is None else self.sampler.table(self.samples, self.rows)
        return found

    def save(self, folder: str | Path | None = None) -> list[Path]:
        """Write picture, numbers, and the family's other files into `folder`; return them, the picture first.

        Raises UserError where the disk refuses.
        """
        place = output_folder(self.folder if folder is None else Path(folder))
        with writing(place):
            files = save_samples(self.sampler, self.samples, self.origin, place)
            if self.rows is not None:
                files.append(save_table(self.table, place / "imputed.parquet", self.table_facts))
        return files

    def __len__(self) -> int:
        return len(self.samples.values)

    def _repr_png_(self) -> bytes:
        return self.plot._repr_png_()

    @never_failing
    def _repr_html_(self) -> str:
        return sample_card(self.plot, len(self), self.origin, self.table)


def save_samples(sampler: Any, drawn: Samples, origin: Mapping[str, str], folder: Path) -> list[Path]:
    """Write samples into `folder` and return the files, the picture of all samples first.

    `samples.safetensors` holds numbers and conditions, `samples.txt` text, `trajectory.gif` the solver steps; families
    that draw pictures get an image file for each sample, with `origin` in it. Raises OSError or SafetensorError where
    the disk refuses.
    """
    tensors = {"values": drawn.values, **drawn.conditions}
    if drawn.trajectory is not None:
        tensors["trajectory"] = drawn.trajectory
    numbers = folder / "samples.safetensors"
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, numbers)
    figure = sampler.show(drawn)
    files = [save_figure(figure, folder / "samples.png"), numbers]
    files += filter(None, [save_text(figure, folder / "samples.txt")])
    if isinstance(sampler, PicturingSampler):
        files += save_pictures(sampler.pictures(drawn), origin, folder)
    if drawn.trajectory is not None:
        files.append(save_figure(trajectory_figure(sampler, drawn), folder / "trajectory.gif"))
    return files


def trajectory_figure(sampler: Any, drawn: Samples) -> Figure:
    """An animation of the samples over the solver steps, of at most 26 distinct frames."""
    frames = drawn.trajectory
    assert frames is not None
    picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
    shown = [sampler.show(Samples(frames[index], drawn.conditions)) for index in picked]
    return Figure(panels=shown[-1].panels, columns=shown[-1].columns, frames=[*shown, *[shown[-1]] * 5])


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
        parts += _largest(columns)
    if not all(isinstance(panel, ImageGrid | TextPanel) for panel in plot.figure.panels):
        parts.append(picture(plot._repr_png_(), plot.figure.alternative_text))
    return card(f"{num:,} sample{'' if num == 1 else 's'}", about, parts)


def _pictures(grid: ImageGrid) -> Iterator[Markup]:
    shown_images = grid.images[:MOST_PICTURES]
    texts = [str(text) for text in grid.captions[: len(shown_images)]] or [""] * len(shown_images)
    pictures = []
    for number, (image, text) in enumerate(zip(shown_images, texts, strict=True)):
        # A picture as PNG, of at most 256 pixels a side, and its width.
        made = Image.fromarray(np.clip(np.rint(255 * image), 0, 255).astype(np.uint8))
        made.thumbnail((_WIDEST, _WIDEST))
        content = BytesIO()
        made.save(content, format="PNG")
        png, width = content.getvalue(), made.width
        style = f"width:{max(width, 48)}px;max-width:100%;image-rendering:pixelated"
        pictures.append(picture(png, f"sample {number}{': ' if text else ''}{text}", text, style))
    yield row_of(pictures)
    if left := len(grid.images) - len(pictures):
        yield paragraph(f"and {left:,} more, which .images and .save() give")


def _texts(panel: TextPanel) -> Iterator[Markup]:
    if panel.title:
        yield paragraph(panel.title)
    for text in panel.passages[:MOST_TEXTS]:
        yield code(text)
    if (left := len(panel.passages) - MOST_TEXTS) > 0:
        yield paragraph(f"and {left:,} more, which .texts and .save() give")


def _largest(columns: Mapping[str, np.ndarray]) -> Iterator[Markup]:
    """The largest features of completed rows, beside the measured ones."""
    measured = [name for name in columns if name.startswith(_MEASURED)]
    names = [name.removeprefix(_MEASURED) for name in measured]
    imputed = list(columns)[-2 * len(names) : -len(names)] if names else []
    masked = np.asarray(columns["masked"], dtype=bool)
    for window in np.unique(columns["window"])[:MOST_WINDOWS].tolist():
        rows = np.flatnonzero((columns["window"] == window) & masked).tolist()
        first = int(np.flatnonzero(columns["window"] == window)[0])
        lines = []
        for row in rows[:MOST_REGIONS]:
            texts = []
            for keys in (imputed, measured):
                values = {name: float(columns[key][row]) for name, key in zip(names, keys, strict=True)}
                top = sorted(values, key=lambda name: -values[name])[:MOST_NAMES]
                texts.append(", ".join(f"{shown(name, 40)} {values[name]:.3g}" for name in top if values[name] > 0))
            lines.append([f"region {row - first + 1}", *texts])
        title = f"Window {window + 1}: {len(lines)} of {len(rows)} masked regions, their largest features"
        yield table(["", "imputed", "measured"], lines, title)
