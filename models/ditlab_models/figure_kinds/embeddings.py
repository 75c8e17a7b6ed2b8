"""Figures of embeddings: sinusoidal tables, how they grow, two bases, times in [0, 1], rotary
similarity.
"""

from __future__ import annotations

import numpy as np
import torch

from ditlab_models.figures import Curve, Figure, Heatmap, Lines, Panel
from ditlab_models.layers.embeddings import Denominator, SinusoidLayout, embed, frequencies, table

TABLE_DIM = 64
BASES_DIM = 16
BASES = (10000.0, 100.0)
BASES_LENGTH = 400
GROWING_LENGTHS = tuple(range(100, 501, 20))
NUM_TIMES = 101
NUM_SHOWN = 128
"""Positions of the table."""


def embedding_figures() -> dict[str, Figure]:
    """Draw the figures by kind: `embedding_table`, `embedding_growth` (an animation) and
    `embedding_bases`.
    """
    first = f"{GROWING_LENGTHS[0]} positions, {TABLE_DIM} dimensions, base {BASES[0]:g}"
    tables = []
    for length in GROWING_LENGTHS:
        values = np.full((GROWING_LENGTHS[-1], TABLE_DIM), np.nan, dtype=np.float32)
        values[:length] = table(length, TABLE_DIM).numpy()
        tables.append(Figure([_table(values, f"{length} positions")], columns=1))
    panels: list[Panel] = []
    slowest = []
    for base in BASES:
        values = table(BASES_LENGTH, BASES_DIM, base=base).numpy()
        wavelength = 2 * torch.pi / frequencies(BASES_DIM, base=base)[-1].item()
        panels.append(
            _table(values, f"base {base:g}: longest wavelength {wavelength:,.0f} positions")
        )
        slowest.append(Curve(np.arange(BASES_LENGTH), values[:, -2], f"base {base:g}"))
    title = f"The slowest sine (dimension {BASES_DIM - 2}): a small base comes round again"
    panels.append(Lines(slowest, title, "position", "value"))
    growth_title = "A longer table begins with the shorter one"
    return {
        "embedding_table": Figure(
            [_table(table(GROWING_LENGTHS[0], TABLE_DIM).numpy(), first)],
            "Sinusoidal position embedding",
            columns=1,
        ),
        "embedding_growth": Figure(tables[-1].panels, growth_title, columns=1, frames=tables),
        "embedding_bases": Figure(
            panels, title=f"What the base decides, at {BASES_DIM} dimensions"
        ),
    }


def _table(values: np.ndarray, title: str) -> Heatmap:
    return Heatmap(values, title, "dimension", "position", diverging=True, unit="value")


def time_figure(
    dim: int,
    scale: float = 1.0,
    layout: SinusoidLayout = "sin_cos",
    denominator: Denominator = "half_minus_1",
    last: float = 1.0,
    label: str = "time t",
) -> Figure:
    """The sinusoid of values from 0 to `last`, from which a network's embedding of time or noise is
    computed.
    """
    t = torch.linspace(0, last, NUM_TIMES)
    values = embed(t, dim, layout=layout, denominator=denominator, scale=scale).numpy()
    order = "Sines, then cosines" if layout == "sin_cos" else "Cosines, then sines"
    symbol = label.split()[-1]
    scaled = symbol if scale == 1 else f"{scale:g} {symbol}"
    title = f"{order}, of {dim // 2} frequencies, of {scaled}"
    extent = (0, last, dim, 0)
    sinusoid = Heatmap(
        values.T,
        title,
        label,
        "dimension",
        extent,
        diverging=True,
        limits=(-1.0, 1.0),
        unit="value",
    )
    distance = np.linalg.norm(values - values[NUM_TIMES // 2], axis=1)
    title = f"How far each {symbol} lies from {symbol} = {last / 2:g}"
    apart = Lines([Curve(t.numpy(), distance)], title, label, "Euclidean distance")
    return Figure([sinusoid, apart], title=f"The sinusoid of {label}")


def rotary_figure(width: int, length: int) -> Figure:
    """Draw the cosines of the rotations, and the similarity of equal vectors by distance, of heads
    of this width.
    """
    shown = min(length, NUM_SHOWN)
    cosines = np.cos(np.arange(shown)[:, None] * frequencies(width).numpy())
    title = f"cos(m ω_j), m = 0 .. {shown - 1}"
    extent = (0, width // 2, shown, 0)
    panels: list[Panel] = [
        Heatmap(
            cosines,
            title,
            "pair j of the head",
            "position m",
            extent,
            True,
            (-1.0, 1.0),
            unit="cosine",
        )
    ]
    distance = np.arange(length)
    similarity = Curve(distance, rotary_similarity(distance, width))
    title = "Equal vectors, turned by their positions"
    panels.append(Lines([similarity], title, "distance (tokens)", "cosine of query and key"))
    return Figure(
        panels, title=f"Rotary positions: {width // 2} pairs of a head, base {BASES[0]:g}"
    )


def rotary_similarity(distance: np.ndarray, width: int, base: float = 10000.0) -> np.ndarray:
    """Mean over pairs of cos(distance ω_j): the cosine of two equal vectors whose pairs weigh
    alike.
    """
    omega = frequencies(width, base=base).numpy()
    similarity: np.ndarray = np.cos(np.asarray(distance)[..., None] * omega).mean(axis=-1)
    return similarity
