"""Figure of a trained DiT's attention: maps over the image, by layer and head."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.dit.network import DiT
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, ImageGrid, Lines, Panel
from denoisers.processes.flow.figures import to_pictures
from denoisers.processes.flow.linear_path import interpolate

TIME = 0.25
"""The image is noised a little, as in the last third of sampling: digits are legible and heads have specialised."""
MAX_LAYERS = 6
MAX_HEADS = 8


def draw_attention(inputs: FigureInputs) -> Figure:
    """Draw `attention`: maps of three query patches for every layer and head, and each layer's attention distance."""
    network = inputs.network
    assert isinstance(network, DiT)
    image = inputs.batch["image"][:1]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    x = interpolate(image, noise, torch.full((1,), TIME).to(image))
    label = inputs.batch["label"][:1] if network.label is not None else None
    weights = attention_maps(network, x, torch.full((1,), TIME, device=x.device), label)  # (layers, heads, N, N)
    rows = network.spec.num_rows
    picture = _grey(to_pictures(image)[0])
    queries = query_patches(picture, network.spec.patch_size)
    shown = np.stack([picture, _grey(to_pictures(x)[0])])
    panels: list[Panel] = [ImageGrid(shown, ["image", f"what the network sees, t = {TIME:g}"], 2)]
    panels += [_query_panel(weights, picture, query, rows, name) for name, query in queries.items()]
    panels.append(distance_lines(weights, rows))
    return Figure(panels, title="Attention maps: red is looked at, the blue patch is looking")


def attention_maps(network: DiT, x: Tensor, t: Tensor, label: Tensor | None = None) -> np.ndarray:
    """Attention weights of the first image, (layers, heads, queries N, keys N), computed beside the forward pass."""
    inputs: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0])

    attentions = [block.attention for block in network.transformer_blocks()]
    handles = [attention.register_forward_pre_hook(keep) for attention in attentions]
    try:
        network(x.to(network.head.weight.dtype), t, label)
    finally:
        for handle in handles:
            handle.remove()
    maps = [attention.attention_weights(x)[0] for attention, x in zip(attentions, inputs, strict=True)]
    return torch.stack(maps).detach().float().cpu().numpy()


def query_patches(picture: np.ndarray, patch_size: int) -> dict[str, int]:
    """Query patches by name: the centre, the brightest one, the top left corner."""
    rows = picture.shape[0] // patch_size
    ink = picture.reshape(rows, patch_size, rows, patch_size).mean(axis=(1, 3)).flatten()
    return {"the centre": rows // 2 * rows + rows // 2, "the brightest patch": int(ink.argmax()), "the corner": 0}


def distance_lines(weights: np.ndarray, rows: int) -> Lines:
    """Mean distance, in patches, between a query and what it attends to, by layer; the band is the heads' spread."""
    row, column = np.divmod(np.arange(rows**2), rows)
    distance = np.hypot(row[:, None] - row, column[:, None] - column)
    by_head = (weights * distance).sum(axis=-1).mean(axis=-1)  # (layers, heads)
    layers = np.arange(1, len(weights) + 1)
    curves = [
        Curve(layers, by_head.mean(axis=1), "mean of the heads", band=by_head.std(axis=1)),
        Curve(layers, np.full(len(layers), distance.mean()), "if every patch counted alike"),
    ]
    return Lines(curves, "How far a layer looks", x_label="layer", y_label="mean distance (patches)")


def _query_panel(weights: np.ndarray, picture: np.ndarray, query: int, rows: int, name: str) -> ImageGrid:
    num_layers, num_heads = weights.shape[:2]
    layers = sorted({round(layer) for layer in np.linspace(0, num_layers - 1, MAX_LAYERS)})
    heads = range(min(num_heads, MAX_HEADS))
    images = [_overlay(weights[layer, head, query], picture, query, rows) for layer in layers for head in heads]
    captions = [f"layer {layer + 1}, head {head + 1}" for layer in layers for head in heads]
    return ImageGrid(np.stack(images), captions, len(heads), title=f"Seen from {name} (patch {query})")


def _overlay(weights: np.ndarray, picture: np.ndarray, query: int, rows: int) -> np.ndarray:
    """The picture, dimmed, with a row of attention weights (N,) in red and the query patch in blue: RGB."""
    size = picture.shape[0] // rows
    heat = (weights / weights.max()).reshape(rows, rows).repeat(size, axis=0).repeat(size, axis=1)
    colour = 0.5 * picture[..., None].repeat(3, axis=2) * (1 - heat[..., None])
    colour[..., 0] += heat * (0.5 + 0.5 * picture)
    top, left = query // rows * size, query % rows * size
    colour[top : top + size, left : left + size, 2] = 1
    return colour.clip(0, 1)


def _grey(picture: np.ndarray) -> np.ndarray:
    return picture.mean(axis=2) if picture.ndim == 3 else picture
