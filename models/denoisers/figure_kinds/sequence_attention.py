"""Figure of attention over a sequence: maps by layer and head, and the distance that each layer looks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from denoisers.figure_kinds.attention_parts import AttentionParts, mean_distance
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel

MAX_LAYERS = 4
MAX_HEADS = 4


def sequence_attention_figure(layers: Sequence[AttentionParts], unit: str, title: str, first: int = 0) -> Figure:
    """Draw each head's weights in up to four layers, and the mean distance by layer, in `unit`s of the sequence.

    Tokens before `first` (a class token) are left out of the distance, and counted in the maps.
    """
    chosen = sorted({round(layer) for layer in np.linspace(0, len(layers) - 1, MAX_LAYERS)})
    num_heads = min(MAX_HEADS, len(layers[0].weights))
    panels: list[Panel] = []
    for number in chosen:
        weights = layers[number].weights[:num_heads]
        for head, values in enumerate(weights):
            # The largest weights alone would set the scale: one bright cell, and nothing else to be seen.
            limits = (0.0, float(np.quantile(values, 0.995)) or 1.0)
            name = f"layer {number + 1}, head {head + 1}"
            panels.append(Heatmap(values, name, f"key ({unit})", f"query ({unit})", limits=limits, unit="weight"))
    panels.append(distance_lines([each.weights[:, first:, first:] for each in layers], unit))
    return Figure(panels, title=title, columns=num_heads)


def distance_lines(weights: Sequence[np.ndarray], unit: str) -> Lines:
    """Draw the mean distance between a query and what it attends to, by layer; the band is the heads' spread."""
    places = np.arange(weights[0].shape[-1])
    distance = np.abs(places[:, None] - places).astype(float)
    return distance_by_layer(weights, distance, f"{unit}s")


def distance_by_layer(weights: Sequence[np.ndarray], distance: np.ndarray, unit: str) -> Lines:
    """Draw the mean of any distance (N, N) between a query and what it attends to, by layer."""
    # Weights on tokens that were left out are shared among the others.
    shares = [each / np.maximum(each.sum(axis=-1, keepdims=True), 1e-12) for each in weights]
    by_head = np.stack([mean_distance(each, distance) for each in shares])  # (layers, heads)
    layers = np.arange(1, len(weights) + 1)
    curves = [
        Curve(layers, by_head.mean(axis=1), "mean of the heads", band=by_head.std(axis=1)),
        Curve(layers, np.full(len(layers), distance.mean()), "if every token counted alike"),
    ]
    return Lines(curves, "How far a layer looks", "layer", f"mean distance ({unit})")
