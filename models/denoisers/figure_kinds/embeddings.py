"""Figures of embeddings: sinusoidal tables, how they grow, two bases, times in [0, 1], rotary similarity."""

from __future__ import annotations

import numpy as np
import torch

from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.embeddings import Denominator, SinusoidLayout, embed, frequencies, longest_wavelength, table

TABLE_DIM = 64
BASES_DIM = 16
BASES = (10000.0, 100.0)
GROWING_LENGTHS = tuple(range(100, 501, 20))
NUM_TIMES = 101
NUM_SHOWN = 128
"""Positions of the table."""


def embedding_figures() -> dict[str, Figure]:
    """Draw the figures by kind: `embedding_table`, `embedding_growth` (an animation) and `embedding_bases`."""
    return {
        "embedding_table": Figure([table_heatmap(100, TABLE_DIM)], title="Sinusoidal position embedding", columns=1),
        "embedding_growth": growth_figure(),
        "embedding_bases": bases_figure(),
    }


def table_heatmap(length: int, dim: int, base: float = 10000.0, title: str = "") -> Heatmap:
    """A table with a row for each position: sines at even dimensions, cosines at odd ones."""
    values = table(length, dim, base=base).numpy()
    title = title or f"{length} positions, {dim} dimensions, base {base:g}"
    return Heatmap(values, title, x_label="dimension", y_label="position", diverging=True, unit="value")


def growth_figure() -> Figure:
    """Tables of 100 to 500 positions in turn: no row changes as the table grows. Rows beyond its end are blank."""
    tallest = GROWING_LENGTHS[-1]
    frames = []
    for length in GROWING_LENGTHS:
        values = np.full((tallest, TABLE_DIM), np.nan, dtype=np.float32)
        values[:length] = table(length, TABLE_DIM).numpy()
        panel = Heatmap(
            values, f"{length} positions", x_label="dimension", y_label="position", diverging=True, unit="value"
        )
        frames.append(Figure([panel], columns=1))
    title = "A longer table begins with the shorter one"
    return Figure(frames[-1].panels, title, columns=1, frames=frames)


def bases_figure(length: int = 400) -> Figure:
    """Bases side by side, with their longest wavelengths, and the slowest sine of each: the reason for a large base."""
    panels: list[Heatmap | Lines] = []
    slowest = []
    for base in BASES:
        wavelength = longest_wavelength(BASES_DIM, base=base)
        title = f"base {base:g}: longest wavelength {wavelength:,.0f} positions"
        panels.append(table_heatmap(length, BASES_DIM, base, title))
        sine = table(length, BASES_DIM, base=base)[:, -2].numpy()
        slowest.append(Curve(np.arange(length), sine, f"base {base:g}"))
    title = f"The slowest sine (dimension {BASES_DIM - 2}): a small base comes round again"
    panels.append(Lines(slowest, title, x_label="position", y_label="value"))
    return Figure(panels, title=f"What the base decides, at {BASES_DIM} dimensions", columns=2)


def time_figure(
    dim: int,
    scale: float = 1.0,
    layout: SinusoidLayout = "sin_cos",
    denominator: Denominator = "half_minus_1",
    last: float = 1.0,
    label: str = "time t",
) -> Figure:
    """The sinusoid of values from 0 to `last`, from which a network's embedding of time or noise is computed."""
    t = torch.linspace(0, last, NUM_TIMES)
    values = embed(t, dim, layout=layout, denominator=denominator, scale=scale).numpy()
    order = "Sines, then cosines" if layout == "sin_cos" else "Cosines, then sines"
    symbol = label.split()[-1]
    argument = symbol if scale == 1 else f"{scale:g} {symbol}"
    heatmap = Heatmap(
        values.T,
        f"{order}, of {dim // 2} frequencies, of {argument}",
        x_label=label,
        y_label="dimension",
        extent=(0, last, dim, 0),
        diverging=True,
        limits=(-1.0, 1.0),
        unit="value",
    )
    distance = np.linalg.norm(values - values[NUM_TIMES // 2], axis=1)
    title = f"How far each {symbol} lies from {symbol} = {last / 2:g}"
    apart = Lines([Curve(t.numpy(), distance)], title, x_label=label, y_label="Euclidean distance")
    return Figure([heatmap, apart], title=f"The sinusoid of {label}")


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
