"""Figures of a trained DiT's attention: maps over the image by layer and head, its steps, and plain patterns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoisers.dit.network import DiT
from denoisers.dit.spec import DiTSpec
from denoisers.figure_kinds.attention_parts import AttentionParts, catch_attention
from denoisers.figure_kinds.attention_steps import attention_steps_figure
from denoisers.figure_kinds.image_attention import image_attention_panels, patterns_figure
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure, ImageGrid, Panel
from denoisers.processes.flow.figures import to_grey
from denoisers.processes.flow.linear_path import interpolate

TIME = 0.25
"""The image is noised a little, as in the last third of sampling: digits are legible and heads have specialised."""


def draw_attention(inputs: FigureInputs) -> Figure:
    """Draw `attention`: maps of three query patches for every layer and head, and each layer's attention distance."""
    spec = _network(inputs).spec
    image = inputs.batch["image"][:1]
    x, layers = _attend(inputs)
    picture = to_grey(image)[0]
    shown = np.stack([picture, to_grey(x)[0]])
    panels: list[Panel] = [ImageGrid(shown, ["image", f"what the network sees, t = {TIME:g}"], 2)]
    panels += image_attention_panels([each.weights for each in layers], picture, spec.num_rows, spec.num_rows)
    return Figure(panels, title="Attention maps: orange is looked at, the blue patch is looking")


def draw_attention_steps(inputs: FigureInputs) -> Figure:
    """Draw `attention_steps`: one head of the middle layer from its input to its output, for a noised image."""
    _, layers = _attend(inputs)
    middle = len(layers) // 2
    return attention_steps_figure(layers[middle], f"layer {middle + 1} of {len(layers)}", tokens="patch")


def draw_attention_patterns(inputs: FigureInputs) -> Figure:
    """Draw `attention_patterns`: plain patterns, and how similar every head is to each of them."""
    _, layers = _attend(inputs)
    rows = _network(inputs).spec.num_rows
    return patterns_figure([each.weights for each in layers], rows, rows)


def static_patterns(spec: DiTSpec) -> Figure:
    """Draw `attention_patterns` without a network: plain patterns alone."""
    return patterns_figure(None, spec.num_rows, spec.num_rows)


def attention_maps(network: DiT, x: Tensor, t: Tensor, label: Tensor | None = None) -> np.ndarray:
    """Attention weights of the first image, (layers, heads, queries N, keys N), computed beside the forward pass."""
    return np.stack([each.weights for each in _parts(network, x, t, label)])


def _attend(inputs: FigureInputs) -> tuple[Tensor, list[AttentionParts]]:
    """Noise the batch's first image, and return it with the parts of each layer's attention."""
    network = _network(inputs)
    image = inputs.batch["image"][:1]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    t = torch.full((1,), TIME, device=image.device)
    x = interpolate(image, noise, t.to(image))
    label = inputs.batch["label"][:1] if network.label is not None else None
    return x, _parts(network, x, t, label)


def _parts(network: DiT, x: Tensor, t: Tensor, label: Tensor | None) -> list[AttentionParts]:
    attentions = [block.attention for block in network.transformer_blocks()]
    with torch.no_grad():
        return catch_attention(attentions, lambda: network(x.to(network.head.weight.dtype), t, label))


def _network(inputs: FigureInputs) -> DiT:
    network = inputs.network
    assert isinstance(network, DiT)
    return network
