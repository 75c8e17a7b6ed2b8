"""Figures of attention, caught in a forward pass: maps by layer and head, and one head step by step
(arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ditlab_models.figures import Bars, Curve, Figure, Heatmap, ImageGrid, Lines, Panel, evenly_spaced
from ditlab_models.layers.attention import GatedAttention, SelfAttention
from ditlab_models.layers.rope import rotate

MAX_TOKENS = 49
MAX_BARS = 12
MAX_LAYERS = 6
MAX_HEADS = 8
MAX_SEQUENCE_LAYERS = 4
MAX_SEQUENCE_HEADS = 4


class AttentionParts(NamedTuple):
    """One attention layer's computation for the first sample of a batch."""

    x: np.ndarray
    """(N, D), normalised and modulated."""
    q: np.ndarray
    """(H, N, K), turned by their positions where the layer does so."""
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray
    """(H, queries N, keys N), NaN where a query does not attend to a key."""
    weights: np.ndarray
    """(H, queries N, keys N): the softmax of the scores; rows sum to 1."""


def catch_attention(attentions: Sequence[nn.Module], run: Callable[[], object]) -> list[AttentionParts]:
    """Call `run`, which passes each of the layers once, and return their parts in the order of `attentions`."""
    calls: dict[nn.Module, dict[str, Any]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[module] = dict(signature(module.forward).bind(*args, **kwargs).arguments)

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.register_forward_pre_hook(keep, with_kwargs=True))
        run()
    return [_parts(attention, calls[attention]) for attention in attentions]


def _parts(attention: nn.Module, call: dict[str, Any]) -> AttentionParts:
    x, rope = call["x"][:1], call.get("rope")
    if isinstance(attention, SelfAttention):
        q, k, v = attention.heads(x)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = call.get("mask")
    else:
        assert isinstance(attention, GatedAttention), f"{type(attention).__name__} has no parts to draw"
        q, k, v = attention.heads(x, rope if rope is None else type(rope)(*(each[:1] for each in rope)))
        k, v = (each.repeat_interleave(attention.num_heads // attention.num_kv_heads, dim=1) for each in (k, v))
        scores = q @ k.transpose(-2, -1)
        mask = call.get("key_mask")
        mask = None if mask is None else mask[:, None, None]
    scores = scores.detach().float()
    if mask is not None:
        scores = scores.masked_fill(~(mask[:1] if mask.ndim == 4 else mask), -torch.inf)
    shown = scores.masked_fill(~scores.isfinite(), torch.nan)
    parts = (x, q, k, v, shown, scores.softmax(dim=-1))
    return AttentionParts(*(each.detach().float().cpu().numpy()[0] for each in parts))


def attention_steps_figure(
    layers: Sequence[AttentionParts], layer: str = "layer", scale: str = "Q Kᵀ / √K", tokens: str = "token"
) -> Figure:
    """Draw the middle layer's head with the sharpest weights: input, queries, keys, values, scores, weights, outputs.

    The first 49 tokens are drawn, under weights of the whole sequence, and the largest weights of the middle one as
    bars.
    """
    middle = len(layers) // 2
    parts = layers[middle]
    head = int(parts.weights.max(axis=-1).mean(axis=-1).argmax())
    q, k, v, scores, weights = (each[head] for each in parts[1:])
    length, num = len(parts.x), min(MAX_TOKENS, len(parts.x))
    key, query, entry = f"key ({tokens})", f"query ({tokens})", "entry of the head"
    shape, square = f"{length} x {q.shape[1]}", slice(num)

    def matrix(values: np.ndarray, title: str, x_label: str, y_label: str = tokens) -> Heatmap:
        extent = (0, values.shape[1], num, 0)
        return Heatmap(values[:num], title, x_label, y_label, extent, diverging=True, unit="value")

    middle_token = num // 2
    largest = np.argsort(-weights[middle_token], kind="stable")[:MAX_BARS]
    bars = weights[middle_token][largest]
    panels: list[Panel] = [
        matrix(parts.x, f"Input X ({length} x {parts.x.shape[1]})", "entry of the token"),
        matrix(q, f"Queries Q ({shape})", entry),
        matrix(k, f"Keys K ({shape})", entry),
        matrix(v, f"Values V ({shape})", entry),
        matrix(scores[:, square], f"Scores {scale}", key, query),
        Heatmap(weights[square, square], "Weights A = softmax of the scores", key, query, unit="weight"),
        matrix(weights @ v, f"Output A V ({shape})", entry),
        Bars(
            [f"{tokens} {index}" for index in largest],
            bars,
            f"What {tokens} {middle_token} attends to (these: {bars.sum():.0%})",
            "weight",
        ),
    ]
    title = f"Attention step by step: {layer} {middle + 1} of {len(layers)}, head {head + 1} of {len(parts.q)}"
    return Figure(panels, title=title)


def image_attention_panels(layers: Sequence[np.ndarray], picture: np.ndarray, rows: int, columns: int) -> list[Panel]:
    """Draw maps (H, N, N) of three query patches for every layer and head, and each layer's distance.

    A map is the dimmed picture, (height, width) grey in [0, 1], with weights in orange and the query in blue.
    """
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    ink = picture.reshape(rows, height, columns, width).mean(axis=(1, 3)).flatten()
    queries = {
        "the centre": rows // 2 * columns + columns // 2,
        "the brightest patch": int(ink.argmax()),
        "the corner": 0,
    }
    heads = range(min(len(layers[0]), MAX_HEADS))
    chosen = [(layer, head) for layer in evenly_spaced(len(layers) - 1, MAX_LAYERS) for head in heads]
    captions = [f"layer {layer + 1}, head {head + 1}" for layer, head in chosen]
    panels: list[Panel] = []
    for name, query in queries.items():
        images = []
        for layer, head in chosen:
            weights = layers[layer][head, query]
            heat = (weights / weights.max()).reshape(rows, columns).repeat(height, axis=0).repeat(width, axis=1)
            colour = 0.5 * picture[..., None].repeat(3, axis=2) * (1 - heat[..., None])
            colour[..., 0] += heat * (0.55 + 0.45 * picture)
            colour[..., 1] += heat * (0.25 + 0.2 * picture)
            top, left = query // columns * height, query % columns * width
            colour[top : top + height, left : left + width, 2] = 1
            images.append(colour.clip(0, 1))
        panels.append(ImageGrid(np.stack(images), captions, len(heads), title=f"Seen from {name} (patch {query})"))
    row, column = np.divmod(np.arange(rows * columns), columns)
    distance = np.hypot(row[:, None] - row, column[:, None] - column)
    return [*panels, distance_by_layer(layers, distance, "patches")]


def plain_patterns(rows: int, columns: int) -> Mapping[str, np.ndarray]:
    """Weights (N, N) that a head might have: rows sum to 1."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, across = row[:, None] - row, column[:, None] - column
    on_border = (row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1)
    patterns = {
        "uniform": np.ones(down.shape),
        "itself": np.eye(len(row)),
        "neighbours": np.exp(-(down**2 + across**2) / 2),
        "row": down == 0,
        "column": across == 0,
        "cross": (down == 0) | (across == 0),
        "diagonals": np.abs(down) == np.abs(across),
        "border": np.broadcast_to(on_border, down.shape),
    }
    return {name: values / values.sum(axis=-1, keepdims=True) for name, values in patterns.items()}


def patterns_figure(layers: Sequence[np.ndarray] | None, rows: int, columns: int) -> Figure:
    """Draw plain patterns seen from the centre, and with layers' weights the similarity of every head to each."""
    patterns = plain_patterns(rows, columns)
    centre = (rows // 2, columns // 2)
    panels: list[Panel] = []
    for name, values in patterns.items():
        seen = values[centre[0] * columns + centre[1]].reshape(rows, columns)
        limits = (0.0, float(seen.max()))
        panels.append(Heatmap(seen, name, "column", "row", mark=centre, unit="weight", limits=limits))
    if layers is None:
        return Figure(panels, title="Plain patterns of attention, seen from the marked patch", columns=4)
    heads = {f"{i + 1}.{j + 1}": head for i, layer in enumerate(layers) for j, head in enumerate(layer)}
    similarity = [
        [float((head * each).sum() / (np.linalg.norm(head) * np.linalg.norm(each))) for head in heads.values()]
        for each in patterns.values()
    ]
    panels.append(
        Heatmap(
            np.array(similarity),
            "What the heads look like",
            "layer.head",
            "pattern",
            limits=(0.0, 1.0),
            x_names=list(heads),
            y_names=list(patterns),
            unit="cosine",
        )
    )
    title = "Plain patterns of attention, and how similar the trained heads are to each"
    return Figure(panels, title=title, columns=3)


def sequence_attention_figure(layers: Sequence[AttentionParts], unit: str, title: str, first: int = 0) -> Figure:
    """Draw each head's weights in up to four layers, and the mean distance by layer, of tokens from `first` on, in
    `unit`s."""
    num_heads = min(MAX_SEQUENCE_HEADS, len(layers[0].weights))
    panels: list[Panel] = []
    for number in evenly_spaced(len(layers) - 1, MAX_SEQUENCE_LAYERS):
        for head, values in enumerate(layers[number].weights[:num_heads]):
            # The largest weights alone would set the scale: one bright cell, and nothing else to be seen.
            limits = (0.0, float(np.quantile(values, 0.995)) or 1.0)
            name = f"layer {number + 1}, head {head + 1}"
            panels.append(Heatmap(values, name, f"key ({unit})", f"query ({unit})", limits=limits, unit="weight"))
    weights = [each.weights[:, first:, first:] for each in layers]
    places = np.arange(weights[0].shape[-1])
    panels.append(distance_by_layer(weights, np.abs(places[:, None] - places).astype(float), f"{unit}s"))
    return Figure(panels, title=title, columns=num_heads)


def distance_by_layer(weights: Sequence[np.ndarray], distance: np.ndarray, unit: str) -> Lines:
    """Draw the mean of any distance (N, N) between a query and what it attends to, by layer; the band is the heads'."""
    # Weights on tokens that were left out are shared among the others.
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in weights]
    by_head = np.stack([(each * distance).sum(axis=-1).mean(axis=-1) for each in shares])  # (layers, heads)
    layers = np.arange(1, len(weights) + 1)
    curves = [
        Curve(layers, by_head.mean(axis=1), "mean of the heads", band=by_head.std(axis=1)),
        Curve(layers, np.full(len(layers), distance.mean()), "if every token counted alike"),
    ]
    return Lines(curves, "How far a layer looks", "layer", f"mean distance ({unit})")
