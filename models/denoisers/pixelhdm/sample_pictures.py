"""Sampled images for people: a grid with captions, and image files with the settings of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from denoisers.contract import Picture, Samples
from denoisers.figures import Figure, ImageGrid
from denoisers.pixelhdm.sample_conditions import to_texts
from denoisers.pixelhdm.spec import PixelHDMSamplingSpec
from denoisers.processes.flow.figures import to_pictures

MAX_COLUMNS = 16
"""Most columns of a grid with a row for each prompt."""


def sample_grid(samples: Samples) -> Figure:
    """Draw the samples with their prompts; several prompts with several images get a row each."""
    prompts = _texts(samples, "prompt")
    runs = [len(list(same)) for _, same in groupby(prompts)]
    in_rows = len(runs) > 1 and 1 < runs[0] <= MAX_COLUMNS
    return Figure([ImageGrid(to_pictures(samples.values), prompts, runs[0] if in_rows else 8)], columns=1)


def picture_files(samples: Samples, spec: PixelHDMSamplingSpec) -> list[Picture]:
    """Make a picture of each sample, with the settings under which its seed reproduces it."""
    pixels = np.rint(255 * to_pictures(samples.values)).astype(np.uint8)
    height, width = pixels.shape[1:3]
    common = {
        "size": f"{height}x{width}",
        "solver": spec.solver,
        "steps": str(spec.steps),
        "guidance": f"{spec.guidance:g}",
        "guidance_schedule": spec.guidance_schedule,
        "min_scale": f"{spec.min_scale:g}",
        "interval": f"{spec.interval[0]:g} {spec.interval[1]:g}",
        "rescale": f"{spec.rescale:g}",
        "eps": f"{spec.eps:g}",
        "final_projection": str(spec.final_projection).lower(),
    }
    own: dict[str, Sequence[str]] = {name: _texts(samples, name) for name in ("prompt", "negative_prompt")}
    own |= {
        name: [f"{v}" for v in samples.conditions[name].tolist()]
        for name in ("seed", "strength")
        if name in samples.conditions
    }
    return [
        Picture(image, {name: values[i] for name, values in own.items() if values} | common)
        for i, image in enumerate(pixels)
    ]


def _texts(samples: Samples, name: str) -> list[str]:
    """One text for each sample, or none."""
    return to_texts(samples.conditions[name]) if name in samples.conditions else []
