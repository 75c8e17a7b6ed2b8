"""Samples that were drawn, as tensors, images, text and files, and as notebooks show them. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
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
MOST_REGIONS = 12
"""Completed rows that are shown."""
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
        """The samples over the solver steps, in at most 26 frames. Raises ValueError without a trajectory."""
        frames = self.samples.trajectory
        if frames is None:
            raise ValueError("these samples have no trajectory; draw them with trajectory=True.")
        picked = sorted({round(i * (len(frames) - 1) / 25) for i in range(26)})
        shown = [self.sampler.show(Samples(frames[index], self.samples.conditions)) for index in picked]
        last = shown[-1]
        return Plot(Figure(panels=last.panels, columns=last.columns, frames=[*shown, *[last] * 5]))

    @property
    def images(self) -> list[Image.Image]:
        """One image a sample; empty for families that draw no images."""
        if isinstance(self.sampler, PicturingSampler):
            return [Image.fromarray(picture.pixels) for picture in self.sampler.pictures(self.samples)]
        grids = [panel for panel in self.plot.figure.panels if isinstance(panel, ImageGrid)]
        return [image for grid in grids for image in _images(grid)]

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

        `samples.safetensors` holds numbers and conditions, `samples.txt` text, `trajectory.gif` the solver steps;
        families that draw pictures get an image file for each sample, with `origin` in it. Raises UserError where the
        disk refuses.
        """
        place, drawn = output_folder(self.folder if folder is None else Path(folder)), self.samples
        tensors = {"values": drawn.values, **drawn.conditions}
        if drawn.trajectory is not None:
            tensors["trajectory"] = drawn.trajectory
        with writing(place):
            numbers, figure = place / "samples.safetensors", self.plot.figure
            save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, numbers)
            files = [save_figure(figure, place / "samples.png"), numbers]
            files += filter(None, [save_text(figure, place / "samples.txt")])
            if isinstance(self.sampler, PicturingSampler):
                files += save_pictures(self.sampler.pictures(drawn), self.origin, place)
            if drawn.trajectory is not None:
                files.append(save_figure(self.animation.figure, place / "trajectory.gif"))
            if self.rows is not None:
                files.append(save_table(self.table, place / "imputed.parquet", self.table_facts))
        return files

    def __len__(self) -> int:
        return len(self.samples.values)

    def _repr_png_(self) -> bytes:
        return self.plot._repr_png_()

    @never_failing
    def _repr_html_(self) -> str:
        """All samples, up to a number that a page carries, and the completed rows."""
        parts: list[Markup] = []
        for panel in self.plot.figure.panels:
            if isinstance(panel, ImageGrid):
                captions = [*map(str, panel.captions), *[""] * len(panel.images)]
                pictures = []
                for number, image in enumerate(_images(panel)[:MOST_PICTURES]):
                    image.thumbnail((_WIDEST, _WIDEST))
                    content, text = BytesIO(), captions[number]
                    image.save(content, format="PNG")
                    style = f"width:{max(image.width, 48)}px;max-width:100%;image-rendering:pixelated"
                    about = f"sample {number}{': ' if text else ''}{text}"
                    pictures.append(picture(content.getvalue(), about, text, style))
                parts.append(row_of(pictures))
                if (left := len(panel.images) - len(pictures)) > 0:
                    parts.append(paragraph(f"and {left:,} more, which .images and .save() give"))
            elif isinstance(panel, TextPanel):
                parts += [paragraph(panel.title or "texts"), *map(code, panel.passages[:MOST_TEXTS])]
                if (left := len(panel.passages) - MOST_TEXTS) > 0:
                    parts.append(paragraph(f"and {left:,} more, which .texts and .save() give"))
        if self.rows is not None:
            parts.append(_largest(self.table))
        if not all(isinstance(panel, ImageGrid | TextPanel) for panel in self.plot.figure.panels):
            parts.append(picture(self._repr_png_(), self.plot.figure.alternative_text))
        about = ", ".join(f"{name} {value}" for name, value in self.origin.items())
        return card(f"{len(self):,} sample{'' if len(self) == 1 else 's'}", about, parts)


def _images(grid: ImageGrid) -> list[Image.Image]:
    return [Image.fromarray(np.clip(np.rint(255 * image), 0, 255).astype(np.uint8)) for image in grid.images]


def _largest(columns: Mapping[str, np.ndarray]) -> Markup:
    """A table of the largest features of the first completed rows, beside the measured ones."""
    names = [name.removeprefix(_MEASURED) for name in columns if name.startswith(_MEASURED)]
    imputed = list(columns)[-2 * len(names) : -len(names)] if names else []
    sources = dict(zip(names, imputed, strict=True)), {name: _MEASURED + name for name in names}
    rows = np.flatnonzero(np.asarray(columns["masked"], dtype=bool))
    lines = []
    for row in rows[:MOST_REGIONS].tolist():
        window = int(columns["window"][row])
        region = row - int(np.flatnonzero(columns["window"] == window)[0])
        texts = []
        for keys in sources:
            values = {name: float(columns[key][row]) for name, key in keys.items()}
            top = sorted(values, key=lambda name: -values[name])[:MOST_NAMES]
            texts.append(", ".join(f"{shown(name, 40)} {values[name]:.3g}" for name in top if values[name] > 0))
        lines.append([f"window {window + 1}, region {region + 1}", *texts])
    return table(
        ["", "imputed", "measured"], lines, f"{len(lines)} of {len(rows)} masked regions, their largest features"
    )
