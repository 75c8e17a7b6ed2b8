"""Figures of DiT's tokens: patches and positions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoisers.dit.network import DiT
from denoisers.dit.spec import DiTSpec
from denoisers.figure_kinds.patch_grid import cut_patches, with_patch_lines
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure, Heatmap, ImageGrid, Panel
from denoisers.layers.embeddings import table, table_2d
from denoisers.processes.flow.figures import to_pictures


def draw_patches(inputs: FigureInputs) -> Figure:
    """Draw `patches`: the batch's first image in patches, and the network's learned projection of them."""
    network = inputs.network
    assert isinstance(network, DiT)
    kernel = network.patch_embedding.projection.weight.detach().float().cpu()  # (D, C, P, P)
    return patches_figure(inputs.batch["image"][0], network.spec, kernel.flatten(1).T.numpy())


def draw_positions(inputs: FigureInputs) -> Figure:
    """Draw `positions`: a fixed table, the same before and after training."""
    assert isinstance(inputs.network, DiT)
    return positions_figure(inputs.network.spec)


def patches_figure(image: Tensor, spec: DiTSpec, projection: np.ndarray | None = None) -> Figure:
    """Draw an image (C, S, S) in [-1, 1], its patches in place and in sequence, and the projection (P * P * C, D)."""
    picture = to_pictures(image[None])[0]
    rows, size = spec.num_rows, spec.patch_size
    shape = f"{spec.image_size} x {spec.image_size} x {spec.channels}"
    panels: list[Panel] = [
        ImageGrid(picture[None], columns=1, title=f"Image: {shape}"),
        ImageGrid(with_patch_lines(picture, size)[None], columns=1, title=f"{rows**2} patches of {size} x {size}"),
        ImageGrid(
            cut_patches(picture, size),
            captions=[str(index) for index in range(rows**2)],
            columns=rows,
            title=f"In sequence: {rows**2} patches of {size * size * spec.channels} numbers",
        ),
    ]
    if projection is not None:
        title = f"Learned projection: {projection.shape[0]} -> {projection.shape[1]}"
        panels.append(
            Heatmap(projection, title, "embedding dimension", "number in the patch", diverging=True, unit="weight")
        )
    return Figure(panels, title="An image as a sequence of patches")


def positions_figure(spec: DiTSpec) -> Figure:
    """Draw the tables of one axis and of the grid, and the similarity of positions: of any two, and to the centre."""
    rows, width = spec.num_rows, spec.width
    axis = table(rows, width // 2, layout="sin_cos", denominator="half_minus_1").numpy()
    positions = table_2d(rows, rows, width).numpy()
    similarity = positions @ positions.T / (width / 2)  # every row's squared norm is width / 2
    centre = (rows // 2, rows // 2)
    panels = [
        Heatmap(axis, f"One axis: {rows} x {width // 2}", "dimension", "row or column", diverging=True, unit="value"),
        Heatmap(positions, f"The grid: {rows**2} x {width}", "dimension", "patch", diverging=True, unit="value"),
        Heatmap(similarity, "Similarity of every two patches", "patch", "patch", unit="cosine"),
        Heatmap(
            similarity[centre[0] * rows + centre[1]].reshape(rows, rows),
            "Similarity to the centre patch",
            "column",
            "row",
            mark=centre,
            unit="cosine",
        ),
    ]
    return Figure(panels, title="Where each patch is: fixed sinusoids of its row and column")


def ring(spec: DiTSpec) -> Tensor:
    """Make an image of a ring with a shaded inside, (C, S, S) in [-1, 1], for figures without data."""
    line = torch.linspace(-1, 1, spec.image_size)
    radius = (line[:, None].square() + line.square()).sqrt()
    image = torch.exp(-(((radius - 0.6) / 0.12) ** 2)) + 0.25 * (radius < 0.6) * (line + 1) / 2
    return (2 * image.clamp(0, 1) - 1).expand(spec.channels, -1, -1)
