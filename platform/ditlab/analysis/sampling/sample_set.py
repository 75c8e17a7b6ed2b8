"""Samples that were drawn, as tensors, images, text and files. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from denoisers.contract import PicturingSampler, RealRows, Samples
from denoisers.figures import ImageGrid
from denoisers.figures import Text as TextPanel
from ditlab.analysis.plot import Plot
from ditlab.analysis.sampling.files import save_samples, trajectory_figure
from ditlab.analysis.sampling.sample_card import sample_card
from ditlab.analysis.user_errors import output_folder, writing
from ditlab.notebook_html import never_failing
from ditlab.reports.text_file import save_table


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
