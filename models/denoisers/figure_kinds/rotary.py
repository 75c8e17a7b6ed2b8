"""Figure of rotary positions: similarity of a query and a key by their distance."""

from __future__ import annotations

import numpy as np

from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.embeddings import frequencies

NUM_SHOWN = 128
"""Positions of the table."""


def rotary_figure(width: int, length: int, base: float = 10000.0) -> Figure:
    """Draw the cosines of the rotations, and the similarity of equal vectors by distance, of heads of this width."""
    omega = frequencies(width, base=base).numpy()
    shown = min(length, NUM_SHOWN)
    table = np.cos(np.arange(shown)[:, None] * omega)
    distance = np.arange(length)
    panels: list[Panel] = [
        Heatmap(
            table, f"cos(m ω_j), m = 0 .. {shown - 1}", "pair j of the head", "position m",
            (0, width // 2, shown, 0), diverging=True, limits=(-1.0, 1.0), unit="cosine",
        ),
        Lines(
            [Curve(distance, rotary_similarity(distance, width, base))], "Equal vectors, turned by their positions",
            "distance (tokens)", "cosine of query and key",
        ),
    ]  # fmt: skip
    return Figure(panels, title=f"Rotary positions: {width // 2} pairs of a head, base {base:g}")


def rotary_similarity(distance: np.ndarray, width: int, base: float = 10000.0) -> np.ndarray:
    """Mean over pairs of cos(distance ω_j): the cosine of two equal vectors whose pairs weigh alike."""
    omega = frequencies(width, base=base).numpy()
    similarity: np.ndarray = np.cos(np.asarray(distance)[..., None] * omega).mean(axis=-1)
    return similarity
