"""Figures of attention: maps over an image or a sequence by layer and head, and one head step by step.

The parts of attention are caught in a forward pass, as the network computes them. The steps are those of Vaswani et al.
2017 (arXiv:1706.03762, section 3.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.figures import Bars, Curve, Figure, Heatmap, ImageGrid, Lines, Panel
from denoisers.layers.attention import GatedAttention, SelfAttention
from denoisers.layers.rope import rotate

MAX_TOKENS = 49
MAX_BARS = 12
MAX_LAYERS = 6
MAX_HEADS = 8
MAX_SEQUENCE_LAYERS = 4
MAX_SEQUENCE_HEADS = 4


@dataclass(frozen=True)
class AttentionParts:
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

    @property
    def mixed(self) -> np.ndarray:
        """Weighted means of the values: (H, N, K)."""
        mixed: np.ndarray = self.weights @ self.v
        return mixed


def catch_attention(attentions: Sequence[nn.Module], run: Callable[[], object]) -> list[AttentionParts]:
    """Call `run`, which passes each of the layers once, and return their parts in the order of `attentions`."""
    calls: dict[nn.Module, dict[str, Any]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[module] = dict(signature(module.forward).bind(*args, **kwargs).arguments)

    handles = [attention.register_forward_pre_hook(keep, with_kwargs=True) for attention in attentions]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [_parts(attention, calls[attention]) for attention in attentions]


def _parts(attention: nn.Module, call: dict[str, Any]) -> AttentionParts:
    x: Tensor = call["x"][:1]
    rope = call.get("rope")
    if isinstance(attention, SelfAttention):
        q, k, v = attention.heads(x)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = call.get("mask")
    else:
        assert isinstance(attention, GatedAttention), f"{type(attention).__name__} has no parts to draw"
        if rope is not None:
            rope = type(rope)(*(each[:1] for each in rope))
        q, k, v = attention.heads(x, rope)
        k, v = (each.repeat_interleave(attention.num_heads // attention.num_kv_heads, dim=1) for each in (k, v))
        scores = q @ k.transpose(-2, -1)
        mask = call.get("key_mask")
        mask = None if mask is None else mask[:1, None, None]
    scores = scores.detach().float()
    if mask is not None:
        allowed = (mask[:1] if mask.ndim == 4 else mask).expand(scores.shape)
        scores = torch.where(allowed, scores, torch.full_like(scores, -torch.inf))
    weights = scores.softmax(dim=-1)
    shown = torch.where(scores.isfinite(), scores, torch.full_like(scores, torch.nan))
    arrays = (each.detach().float().cpu().numpy()[0] for each in (x, q, k, v, shown, weights))
    return AttentionParts(*arrays)


def attention_steps_figure(
    layers: Sequence[AttentionParts], layer: str = "layer", scale: str = "Q Kᵀ / √K", tokens: str = "token"
) -> Figure:
    """Draw the middle layer's head with the sharpest weights: input, queries, keys, values, scores, weights, outputs.

    The largest weights of the middle token are drawn as bars. Of a longer sequence the first 49 tokens are drawn;
    weights are those of the whole sequence.
    """
    middle = len(layers) // 2
    parts = layers[middle]
    head = int(parts.weights.max(axis=-1).mean(axis=-1).argmax())
    num = min(MAX_TOKENS, parts.x.shape[0])
    query = num // 2
    q, k, v, mixed = (each[head] for each in (parts.q, parts.k, parts.v, parts.mixed))
    width = q.shape[-1]
    shape = f"{parts.x.shape[0]} x {width}"
    entry = "entry of the head"
    panels: list[Panel] = [
        _matrix(parts.x[:num], f"Input X ({parts.x.shape[0]} x {parts.x.shape[1]})", "entry of the token", tokens),
        _matrix(q[:num], f"Queries Q ({shape})", entry, tokens),
        _matrix(k[:num], f"Keys K ({shape})", entry, tokens),
        _matrix(v[:num], f"Values V ({shape})", entry, tokens),
        _matrix(parts.scores[head, :num, :num], f"Scores {scale}", f"key ({tokens})", f"query ({tokens})"),
        Heatmap(
            parts.weights[head, :num, :num], "Weights A = softmax of the scores", f"key ({tokens})",
            f"query ({tokens})", unit="weight",
        ),
        _matrix(mixed[:num], f"Output A V ({shape})", entry, tokens),
        _bars(parts.weights[head, query], query, tokens),
    ]  # fmt: skip
    plural = f"{tokens}es" if tokens.endswith("h") else f"{tokens}s"
    count = f"the first {num} of {parts.x.shape[0]} {plural}" if num < parts.x.shape[0] else f"{num} {plural}"
    return Figure(
        panels,
        title=f"Attention step by step: {layer} {middle + 1} of {len(layers)}, head {head + 1} of {len(parts.q)}",
        columns=2,
        alt=f"Eight panels of one attention head over {count}: input, queries, keys, values, scores, softmax weights, "
        f"outputs, and the largest weights of {tokens} {query}.",
    )


def _matrix(values: np.ndarray, title: str, x_label: str, tokens: str) -> Heatmap:
    rows, columns = values.shape
    return Heatmap(values, title, x_label, tokens, (0, columns, rows, 0), diverging=True, unit="value")


def _bars(weights: np.ndarray, query: int, tokens: str) -> Bars:
    """Draw the largest weights of one query, largest first."""
    order = np.argsort(-weights, kind="stable")[:MAX_BARS]
    title = f"What {tokens} {query} attends to (these: {weights[order].sum():.0%})"
    return Bars([f"{tokens} {index}" for index in order], weights[order], title, "weight")


def image_attention_panels(layers: Sequence[np.ndarray], picture: np.ndarray, rows: int, columns: int) -> list[Panel]:
    """Draw maps (H, N, N) of three query patches for every layer and head, and each layer's distance.

    picture: (height, width) grey, in [0, 1].
    """
    queries = query_patches(picture, rows, columns)
    panels: list[Panel] = [_query_panel(layers, picture, at, rows, columns, name) for name, at in queries.items()]
    row, column = np.divmod(np.arange(rows * columns), columns)
    distance = np.hypot(row[:, None] - row, column[:, None] - column)
    return [*panels, distance_by_layer(layers, distance, "patches")]


def query_patches(picture: np.ndarray, rows: int, columns: int) -> dict[str, int]:
    """Query patches by name: the centre, the brightest one, the top left corner."""
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    ink = picture.reshape(rows, height, columns, width).mean(axis=(1, 3)).flatten()
    centre = rows // 2 * columns + columns // 2
    return {"the centre": centre, "the brightest patch": int(ink.argmax()), "the corner": 0}


def plain_patterns(rows: int, columns: int) -> Mapping[str, np.ndarray]:
    """Weights (N, N) that a head might have: rows sum to 1."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, across = row[:, None] - row, column[:, None] - column
    same_row, same_column = (down == 0).astype(float), (across == 0).astype(float)
    patterns = {
        "uniform": np.ones((rows * columns, rows * columns)),
        "itself": np.eye(rows * columns),
        "neighbours": np.exp(-(down**2 + across**2) / 2),
        "row": same_row,
        "column": same_column,
        "cross": np.maximum(same_row, same_column),
        "diagonals": (np.abs(down) == np.abs(across)).astype(float),
        "border": np.broadcast_to(
            (row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1), (rows * columns,) * 2
        ).astype(float),
    }
    return {name: values / values.sum(axis=-1, keepdims=True) for name, values in patterns.items()}


def patterns_figure(layers: Sequence[np.ndarray] | None, rows: int, columns: int) -> Figure:
    """Draw plain patterns seen from the centre, and with layers' weights the similarity of every head to each."""
    patterns = plain_patterns(rows, columns)
    centre = (rows // 2, columns // 2)
    query = centre[0] * columns + centre[1]
    panels: list[Panel] = [
        Heatmap(
            values[query].reshape(rows, columns), name, "column", "row", mark=centre, unit="weight",
            limits=(0.0, float(values[query].max())),
        )
        for name, values in patterns.items()
    ]  # fmt: skip
    title = "Plain patterns of attention, seen from the marked patch"
    if layers is not None:
        names = [f"{number + 1}.{head + 1}" for number, each in enumerate(layers) for head in range(len(each))]
        similarity = np.array(
            [[_cosine(head, values) for values in patterns.values()] for each in layers for head in each]
        )
        panels.append(
            Heatmap(
                similarity.T,
                "What the heads look like",
                "layer.head",
                "pattern",
                limits=(0.0, 1.0),
                x_names=names,
                y_names=list(patterns),
                unit="cosine",
            )
        )
        title = "Plain patterns of attention, and how similar the trained heads are to each"
    return Figure(panels, title=title, columns=3 if len(panels) > 8 else 4)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))


def _query_panel(
    layers: Sequence[np.ndarray], picture: np.ndarray, query: int, rows: int, columns: int, name: str
) -> ImageGrid:
    chosen = sorted({round(layer) for layer in np.linspace(0, len(layers) - 1, MAX_LAYERS)})
    heads = range(min(len(layers[0]), MAX_HEADS))
    images = [_overlay(layers[layer][head, query], picture, query, rows, columns) for layer in chosen for head in heads]
    captions = [f"layer {layer + 1}, head {head + 1}" for layer in chosen for head in heads]
    return ImageGrid(np.stack(images), captions, len(heads), title=f"Seen from {name} (patch {query})")


def _overlay(weights: np.ndarray, picture: np.ndarray, query: int, rows: int, columns: int) -> np.ndarray:
    """The picture, dimmed, with a row of attention weights (N,) in orange and the query patch in blue: RGB."""
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    heat = (weights / weights.max()).reshape(rows, columns).repeat(height, axis=0).repeat(width, axis=1)
    colour = 0.5 * picture[..., None].repeat(3, axis=2) * (1 - heat[..., None])
    colour[..., 0] += heat * (0.55 + 0.45 * picture)
    colour[..., 1] += heat * (0.25 + 0.2 * picture)
    top, left = query // columns * height, query % columns * width
    colour[top : top + height, left : left + width, 2] = 1
    return colour.clip(0, 1)


def sequence_attention_figure(layers: Sequence[AttentionParts], unit: str, title: str, first: int = 0) -> Figure:
    """Draw each head's weights in up to four layers, and the mean distance by layer, in `unit`s of the sequence.

    Tokens before `first` (a class token) are left out of the distance, and counted in the maps.
    """
    chosen = sorted({round(layer) for layer in np.linspace(0, len(layers) - 1, MAX_SEQUENCE_LAYERS)})
    num_heads = min(MAX_SEQUENCE_HEADS, len(layers[0].weights))
    panels: list[Panel] = []
    for number in chosen:
        weights = layers[number].weights[:num_heads]
        for head, values in enumerate(weights):
            # The largest weights alone would set the scale: one bright cell, and nothing else to be seen.
            limits = (0.0, float(np.quantile(values, 0.995)) or 1.0)
            name = f"layer {number + 1}, head {head + 1}"
            panels.append(Heatmap(values, name, f"key ({unit})", f"query ({unit})", limits=limits, unit="weight"))
    weights = [each.weights[:, first:, first:] for each in layers]
    places = np.arange(weights[0].shape[-1])
    distance = np.abs(places[:, None] - places).astype(float)
    panels.append(distance_by_layer(weights, distance, f"{unit}s"))
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
