"""Figures of a trained PixelHDM's attention: maps over the image, the share on text, and one head's steps."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from denoisers.figure_kinds.attention_parts import AttentionParts, catch_attention
from denoisers.figure_kinds.attention_steps import attention_steps_figure
from denoisers.figure_kinds.image_attention import image_attention_panels
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, ImageGrid, Lines, Panel
from denoisers.layers.sandwich_block import SandwichBlock
from denoisers.pixelhdm.figure_parts.probe import noise_images, trained_network
from denoisers.processes.flow.figures import to_grey

NOISE = 0.25


def draw_attention(inputs: FigureInputs) -> Figure:
    """Draw `attention`: maps of three query patches in the patch path, the distance it looks, and its share on text."""
    network = trained_network(inputs)
    z_t, layers = _attend(inputs)
    rows, columns = (side // network.spec.patch_size for side in z_t.shape[2:])
    num = rows * columns
    picture, seen = to_grey(inputs.batch["image"][:1])[0], to_grey(z_t)[0]
    names = ["image", f"what the network sees, t = {1 - NOISE:g}"]
    panels: list[Panel] = [ImageGrid(np.stack([picture, seen]), names, 2)]
    among = [each.weights[:, -num:, -num:] for each in layers]
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in among]
    panels += image_attention_panels(shares, picture, rows, columns)
    on_text = np.stack([1 - each.sum(axis=-1).mean(axis=-1) for each in among])  # (layers, heads)
    curve = Curve(np.arange(1, len(layers) + 1), on_text.mean(axis=1), "mean of the heads", on_text.std(axis=1))
    panels.append(Lines([curve], "Patches' attention to text", "layer", "share of the weight"))
    return Figure(panels, title="Attention of the patch path: orange is looked at, the blue patch is looking")


def draw_attention_steps(inputs: FigureInputs) -> Figure:
    """Draw `attention_steps`: one head of the middle block of the patch path, from its input to its output."""
    _, layers = _attend(inputs)
    middle = len(layers) // 2
    scale = "temperature · cos(Q, K)"
    return attention_steps_figure(layers[middle], f"patch block {middle + 1} of {len(layers)}", scale)


def _attend(inputs: FigureInputs) -> tuple[torch.Tensor, list[AttentionParts]]:
    network = trained_network(inputs)
    noised = noise_images(inputs, NOISE, 1)
    attentions = [block.attention for block in cast("list[SandwichBlock]", list(network.patch_blocks))]
    with torch.no_grad():
        layers = catch_attention(attentions, lambda: network(noised.z_t, noised.t, noised.condition))
    return noised.z_t, layers
