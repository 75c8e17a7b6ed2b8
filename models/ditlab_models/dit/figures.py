"""Figures of DiT: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ditlab_models.dit.network import SINUSOIDS, DiT
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec
from ditlab_models.figure_kinds.attention import catch_attention, image_attention_panels
from ditlab_models.figure_kinds.embeddings import time_figure
from ditlab_models.figure_kinds.network import (
    cut_patches,
    modulation_figure,
    pass_figure,
    with_patch_lines,
)
from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import Figure, Heatmap, ImageGrid, Panel
from ditlab_models.layers.embeddings import table_2d
from ditlab_models.processes.flow import interpolate
from ditlab_models.processes.flow_figures import (
    draw_features_of,
    flow_schedule_figure,
    to_grey,
    to_pictures,
    velocity_makers,
    velocity_probe,
)
from ditlab_models.processes.gaussian import NoiseSchedule, linear_schedule
from ditlab_models.processes.gaussian_figures import gaussian_makers, network_inputs, noise_probe
from ditlab_models.processes.specs import GaussianSpec

TIME = 0.25
"""The image is noised a little, as in the last third of sampling: digits are legible and heads have
specialised.
"""
NUM_TIMES = 101


def figure_makers(objective: DiTObjectiveSpec | GaussianSpec) -> FigureMakers:
    """Return the makers of a trained network's figures by kind."""
    schedule = None
    last = 1.0
    if isinstance(objective, GaussianSpec):
        schedule = linear_schedule(objective.noise)
        last = schedule.num_steps - 1.0
        makers = gaussian_makers(schedule)
    else:
        makers = velocity_makers(objective.time)
    return {
        **makers,
        "patches": draw_patches,
        "positions": lambda inputs: positions_figure(inputs.trained(DiT).spec),
        "attention": lambda inputs: draw_attention(inputs, schedule),
        "adaln": lambda inputs: draw_adaln(inputs, last),
        "features": lambda inputs: draw_features(inputs, schedule),
    }


def static_figures(spec: DiTSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: `patches` of a ring, tables, the noise schedule, the
    forward pass.
    """
    line = torch.linspace(-1, 1, spec.image_size)
    radius = (line[:, None].square() + line.square()).sqrt()
    # shaded inside
    ring = torch.exp(-(((radius - 0.6) / 0.12) ** 2)) + 0.25 * (radius < 0.6) * (line + 1) / 2
    return {
        "patches": patches_figure((2 * ring.clamp(0, 1) - 1).expand(spec.channels, -1, -1), spec),
        "positions": positions_figure(spec),
        "time_embedding": time_figure(
            spec.time_width, spec.time_scale, *SINUSOIDS[spec.time_frequencies]
        ),
        "noise_schedule": flow_schedule_figure(DiTObjectiveSpec().time),
        "forward_pass": forward_pass_figure(spec),
    }


def draw_features(inputs: FigureInputs, schedule: NoiseSchedule | None) -> Figure:
    """Draw `features`: principal components of the tokens of held-out images, a quarter of which is
    noise.
    """
    network = inputs.trained(DiT)
    rows = network.spec.num_rows
    last = network.blocks[-1]
    if schedule is None:
        probe = velocity_probe(inputs)
    else:
        probe = noise_probe(inputs, schedule)
    return draw_features_of(
        inputs, probe, last, lambda tokens: (tokens, rows, rows), "behind the last block"
    )


def draw_patches(inputs: FigureInputs) -> Figure:
    """Draw `patches`: the batch's first image in patches, and the network's learned projection of
    them.
    """
    network = inputs.trained(DiT)
    kernel = network.patch_embedding.projection.weight.detach().float().cpu()  # (D, C, P, P)
    return patches_figure(inputs.batch["image"][0], network.spec, kernel.flatten(1).T.numpy())


def patches_figure(image: Tensor, spec: DiTSpec, projection: np.ndarray | None = None) -> Figure:
    """Draw an image (C, S, S) in [-1, 1], its patches in place and in sequence, and the projection
    (P * P * C, D).
    """
    picture = to_pictures(image[None])[0]
    rows = spec.num_rows
    size = spec.patch_size
    shape = f"{spec.image_size} x {spec.image_size} x {spec.channels}"
    title = f"In sequence: {rows**2} patches of {size * size * spec.channels} numbers"
    panels: list[Panel] = [
        ImageGrid(picture[None], columns=1, title=f"Image: {shape}"),
        ImageGrid(
            with_patch_lines(picture, size)[None],
            columns=1,
            title=f"{rows**2} patches of {size} x {size}",
        ),
        ImageGrid(
            cut_patches(picture, size), [str(index) for index in range(rows**2)], rows, title
        ),
    ]
    if projection is not None:
        title = f"Learned projection: {projection.shape[0]} -> {projection.shape[1]}"
        labels = ("embedding dimension", "number in the patch")
        panels.append(Heatmap(projection, title, *labels, diverging=True, unit="weight"))
    return Figure(panels, title="An image as a sequence of patches")


def positions_figure(spec: DiTSpec) -> Figure:
    """Draw the tables of one axis and of the grid, and the similarity of positions: of any two, and
    to the centre.
    """
    rows = spec.num_rows
    width = spec.width
    positions = table_2d(rows, rows, width, order=spec.positions).numpy()
    if spec.positions == "row_first":
        columns = slice(width // 2, None)
    else:
        columns = slice(width // 2)
    axis = positions[:rows, columns]  # the columns of the first row
    similarity = positions @ positions.T / (width / 2)  # every row's squared norm is width / 2
    centre = (rows // 2, rows // 2)
    to_centre = similarity[centre[0] * rows + centre[1]].reshape(rows, rows)
    panels = [
        Heatmap(
            axis,
            f"One axis: {rows} x {width // 2}",
            "dimension",
            "row or column",
            diverging=True,
            unit="value",
        ),
        Heatmap(
            positions,
            f"The grid: {rows**2} x {width}",
            "dimension",
            "patch",
            diverging=True,
            unit="value",
        ),
        Heatmap(similarity, "Similarity of every two patches", "patch", "patch", unit="cosine"),
        Heatmap(
            to_centre, "Similarity to the centre patch", "column", "row", mark=centre, unit="cosine"
        ),
    ]
    return Figure(panels, title="Where each patch is: fixed sinusoids of its row and column")


def draw_attention(inputs: FigureInputs, schedule: NoiseSchedule | None) -> Figure:
    """Draw `attention`: maps of three query patches for every layer and head, and each layer's
    attention distance.
    """
    network = inputs.trained(DiT)
    image = inputs.batch["image"][:1]
    t = torch.full((1,), TIME, device=image.device)
    x = interpolate(image, inputs.noise_like(image), t.to(image))
    label = inputs.batch["label"][:1] if network.label is not None else None
    attentions = [block.attention for block in network.blocks]
    seen, time = (x, t) if schedule is None else network_inputs(x, t, schedule)
    layers = catch_attention(
        attentions, lambda: network(seen.to(network.head.weight.dtype), time, label)
    )
    rows = network.spec.num_rows
    panels = image_attention_panels(layers, to_grey(image)[0], to_grey(x)[0], TIME, rows, rows)
    return Figure(panels, title="Attention maps: orange is looked at, the blue patch is looking")


def draw_adaln(inputs: FigureInputs, last: float) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention over t, 0 to `last`, and the
    change of all; of the null class, if any."""
    network = inputs.trained(DiT)
    t = torch.linspace(0, last, NUM_TIMES, device=network.head.weight.device)
    conditions = network.block_conditions(network.condition(t), t)
    modulations = [
        block.modulations(each)[0] for block, each in zip(network.blocks, conditions, strict=True)
    ]
    return modulation_figure(modulations, t, "time t")


def forward_pass_figure(spec: DiTSpec) -> Figure:
    """Draw the boxes from image to velocity, and the conditioning by time and class beside them."""
    num = spec.num_rows**2
    width = spec.width
    patch = spec.patch_size**2 * spec.channels
    condition = spec.condition_width
    head = spec.patch_size**2 * spec.head_channels
    image = " x ".join(map(str, spec.image_shape))
    zero = spec.adaln == "zero"
    gate = "gate · " if zero else ""
    final_norm = "adaLN" if spec.final_norm == "adaln" else "LayerNorm"
    embedding = "MLP" if spec.num_classes is None else "MLP + class"
    steps = [
        ("Noised image x_t", image),
        ("Patchify", f"{num} patches of {patch} numbers"),
        ("Patch embedding", f"Linear {patch} → {width}"),
        ("+ position table", f"{num} x {width}, fixed sinusoids"),
        (
            f"{spec.depth} blocks: attention",
            f"z + {gate}attention(adaLN(z, c)), {spec.num_heads} heads",
        ),
        (f"{spec.depth} blocks: MLP", f"z + {gate}MLP(adaLN(z, c)), hidden {spec.mlp_width}"),
        (f"{final_norm}, head", f"Linear {width} → {head}, starts at 0"),
        ("Unpatchify: velocity v", image),
    ]
    conditions = [
        ("Time t", "0: data, 1: noise"),
        ("Sinusoid", f"{spec.time_width} numbers"),
        (f"{embedding}: condition c", f"{spec.time_width} → {condition}"),
        ("adaLN", "scale, shift, gate of each branch" if zero else "scale, shift of each branch"),
    ]
    return pass_figure(steps, conditions, (4, 5), "The forward pass of DiT")
