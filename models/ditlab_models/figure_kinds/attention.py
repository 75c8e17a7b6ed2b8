"""Figures of attention, caught in a forward pass: maps by layer and head, and how far a layer looks
(arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from inspect import signature
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from ditlab_models.figures import Curve, Figure, Heatmap, ImageGrid, Lines, Panel, evenly_spaced
from ditlab_models.layers.attention import GatedAttention, SelfAttention, attend_to
from ditlab_models.layers.rope import rotate
from ditlab_models.tensors import to_numpy

MAX_LAYERS = 6
MAX_HEADS = 8
MAX_SEQUENCE_LAYERS = 4
MAX_SEQUENCE_HEADS = 4


def catch_attention(attentions: Sequence[nn.Module], run: Callable[[], object]) -> list[np.ndarray]:
    """Call `run`, which passes each of the layers once, and return the weights of each for the
    first sample of the batch, (heads, queries, keys), in the order of `attentions`; rows sum to 1.
    """
    calls: dict[nn.Module, dict[str, Any]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[module] = dict(signature(module.forward).bind(*args, **kwargs).arguments)

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.register_forward_pre_hook(keep, with_kwargs=True))
        run()
    return [_weights(attention, calls[attention]) for attention in attentions]


def _weights(attention: nn.Module, call: dict[str, Any]) -> np.ndarray:
    x = call["x"][:1]
    rope = call.get("rope")
    if isinstance(attention, SelfAttention):
        q, k, _ = attention.heads(x)
        if rope is not None:
            q = rotate(q, rope)
            k = rotate(k, rope)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = call.get("mask")
    else:
        assert isinstance(attention, GatedAttention), (
            f"{type(attention).__name__} has no weights to draw"
        )
        if rope is not None:
            rope = type(rope)(*(each[:1] for each in rope))
        q, k, _ = attention.heads(x, rope)
        sharing = attention.num_heads // attention.num_kv_heads
        scores = q @ k.repeat_interleave(sharing, dim=1).transpose(-2, -1)
        mask = attend_to(call.get("key_mask"))
    scores = scores.float()
    if mask is not None:
        if mask.ndim == 4:
            mask = mask[:1]
        scores = scores.masked_fill(~mask, -torch.inf)
    return to_numpy(scores.softmax(dim=-1)[0])


def image_attention_panels(
    layers: Sequence[np.ndarray],
    picture: np.ndarray,
    seen: np.ndarray,
    t: float,
    rows: int,
    columns: int,
) -> list[Panel]:
    """Draw an image and what the network sees of it at time t, maps (H, N, N) of three query
    patches for every layer and head, and each layer's distance.

    A map is the dimmed picture, (height, width) grey in [0, 1], with weights in orange and the
    query in blue.
    """
    height = picture.shape[0] // rows
    width = picture.shape[1] // columns
    ink = picture.reshape(rows, height, columns, width).mean(axis=(1, 3)).flatten()
    queries = {
        "the centre": rows // 2 * columns + columns // 2,
        "the brightest patch": int(ink.argmax()),
        "the corner": 0,
    }
    heads = range(min(len(layers[0]), MAX_HEADS))
    chosen = list(product(evenly_spaced(len(layers) - 1, MAX_LAYERS), heads))
    captions = [f"layer {layer + 1}, head {head + 1}" for layer, head in chosen]
    names = ["image", f"what the network sees, t = {t:g}"]
    panels: list[Panel] = [ImageGrid(np.stack([picture, seen]), names, 2)]
    for name, query in queries.items():
        images = []
        for layer, head in chosen:
            weights = layers[layer][head, query]
            heat = (weights / weights.max()).reshape(rows, columns)
            heat = heat.repeat(height, axis=0).repeat(width, axis=1)
            colour = 0.5 * picture[..., None].repeat(3, axis=2) * (1 - heat[..., None])
            colour[..., 0] += heat * (0.55 + 0.45 * picture)
            colour[..., 1] += heat * (0.25 + 0.2 * picture)
            top = query // columns * height
            left = query % columns * width
            colour[top : top + height, left : left + width, 2] = 1
            images.append(colour.clip(0, 1))
        panels.append(
            ImageGrid(
                np.stack(images), captions, len(heads), title=f"Seen from {name} (patch {query})"
            )
        )
    row, column = np.divmod(np.arange(rows * columns), columns)
    distance = np.hypot(row[:, None] - row, column[:, None] - column)
    return [*panels, distance_by_layer(layers, distance, "patches")]


def sequence_attention_figure(
    layers: Sequence[np.ndarray], unit: str, title: str, first: int = 0
) -> Figure:
    """Draw each head's weights in up to four layers, and the mean distance by layer, of tokens from
    `first` on, in `unit`s."""
    num_heads = min(MAX_SEQUENCE_HEADS, len(layers[0]))
    panels: list[Panel] = []
    for number in evenly_spaced(len(layers) - 1, MAX_SEQUENCE_LAYERS):
        for head, values in enumerate(layers[number][:num_heads]):
            # The largest weights alone would set the scale: one bright cell, and nothing else to be
            # seen.
            limits = (0.0, float(np.quantile(values, 0.995)) or 1.0)
            name = f"layer {number + 1}, head {head + 1}"
            panels.append(
                Heatmap(
                    values, name, f"key ({unit})", f"query ({unit})", limits=limits, unit="weight"
                )
            )
    weights = [each[:, first:, first:] for each in layers]
    places = np.arange(weights[0].shape[-1])
    panels.append(
        distance_by_layer(weights, np.abs(places[:, None] - places).astype(float), f"{unit}s")
    )
    return Figure(panels, title=title, columns=num_heads)


def distance_by_layer(weights: Sequence[np.ndarray], distance: np.ndarray, unit: str) -> Lines:
    """Draw the mean of any distance (N, N) between a query and what it attends to, by layer; the
    band is the heads'.
    """
    # The weights of tokens before `first` are shared among the others.
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in weights]
    # (layers, heads)
    by_head = np.stack([(each * distance).sum(axis=-1).mean(axis=-1) for each in shares])
    layers = np.arange(1, len(weights) + 1)
    curves = [
        Curve(layers, by_head.mean(axis=1), "mean of the heads", band=by_head.std(axis=1)),
        Curve(layers, np.full(len(layers), distance.mean()), "if every token counted alike"),
    ]
    return Lines(curves, "How far a layer looks", "layer", f"mean distance ({unit})")
