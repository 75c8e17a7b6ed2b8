"""Figures of PixelHDM's tokens: patches, and positions in text and image."""

from __future__ import annotations

import numpy as np

from denoisers.figure_kinds.patch_grid import cut_patches, with_patch_lines
from denoisers.figure_kinds.rotary import rotary_similarity
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Bars, Curve, Figure, Heatmap, ImageGrid, Lines, Panel
from denoisers.pixelhdm.figure_parts.probe import trained_network
from denoisers.pixelhdm.model_spec import CHANNELS, PixelHDMSpec
from denoisers.processes.flow.figures import to_pictures

MAX_SHOWN = 64
"""Patches shown in sequence, and rows and columns of positions."""
DISTANCES = 64


def draw_patches(inputs: FigureInputs) -> Figure:
    """Draw `patches`: an image as the two paths take it, and the learned projections of its patches."""
    network = trained_network(inputs)
    spec, size = network.spec, network.spec.patch_size
    picture = to_pictures(inputs.batch["image"][:1])[0]
    height, width = picture.shape[:2]
    patches = cut_patches(picture, size)
    squeeze = network.patch_embedding.squeeze.weight.detach().float().cpu().numpy()
    expand = network.patch_embedding.expand.weight.detach().float().cpu().numpy()
    shown = min(len(patches), MAX_SHOWN)
    numbers = size * size * CHANNELS
    more = "" if shown == len(patches) else f" (the first {shown})"
    panels: list[Panel] = [
        ImageGrid(picture[None], columns=1, title=f"Image, pixel path: {height * width} pixels of {CHANNELS} numbers"),
        ImageGrid(
            with_patch_lines(picture, size)[None], columns=1,
            title=f"Patch path: {len(patches)} patches of {size} x {size}",
        ),
        ImageGrid(
            patches[:shown], [str(index) for index in range(shown)], max(1, width // size),
            f"In sequence{more}: {numbers} numbers each",
        ),
        _weights(squeeze, f"Bottleneck: {numbers} -> {spec.bottleneck_width}", "number in the patch"),
        _weights(expand, f"Then SiLU, {spec.bottleneck_width} -> {spec.width}", "number in the bottleneck"),
    ]  # fmt: skip
    return Figure(panels, title="An image as patches and as pixels", columns=3)


def positions_figure(spec: PixelHDMSpec) -> Figure:
    """Draw the entries of a head by axis, and the similarity of equal vectors by text position, row and column."""
    names = ("text position", "row", "column")
    widths = spec.mrope_widths
    distance = np.arange(DISTANCES)
    by_width = {
        width: ", ".join(name for name, each in zip(names, widths, strict=True) if each == width) for width in widths
    }
    share = np.array(widths) / sum(widths)
    side = min(16, spec.max_patches)
    rows, columns = np.indices((side, side))
    centre = (side // 2, side // 2)
    similarity = (
        share[0]
        + share[1] * rotary_similarity(rows - centre[0], widths[1], spec.rope_base)
        + share[2] * rotary_similarity(columns - centre[1], widths[2], spec.rope_base)
    )
    panels: list[Panel] = [
        Bars(
            names, np.array(widths), f"A head's {sum(widths)} entries", "entries",
            texts=[f"{each:.0%}" for each in share],
        ),
        Lines(
            [
                Curve(distance, rotary_similarity(distance, width, spec.rope_base), name)
                for width, name in by_width.items()
            ],
            "Equal vectors, turned by one axis", "distance on the axis", "cosine of these entries",
        ),
        Heatmap(similarity, "Similarity to the centre patch", "column", "row", mark=centre, unit="cosine"),
    ]  # fmt: skip
    return Figure(panels, title=f"Rotary positions of text and image, base {spec.rope_base:g}", columns=3)


def _weights(values: np.ndarray, title: str, y_label: str) -> Heatmap:
    outputs, entries = values.shape
    extent = (0.0, float(outputs), float(entries), 0.0)
    return Heatmap(values.T, title, "output", y_label, extent, diverging=True, unit="weight")
