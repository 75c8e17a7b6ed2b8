"""Figures of sinusoidal embeddings: a table, the table as it grows, two bases side by side, and times in [0, 1]."""

from __future__ import annotations

import numpy as np
import torch

from denoisers.figures import Curve, Figure, Heatmap, Lines
from denoisers.layers.embeddings import embed, longest_wavelength, table

TABLE_DIM = 64
BASES_DIM = 16
BASES = (10000.0, 100.0)
GROWING_LENGTHS = tuple(range(100, 501, 20))
NUM_TIMES = 101


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
    return Heatmap(values, title, x_label="dimension", y_label="position", diverging=True)


def growth_figure() -> Figure:
    """Tables of 100 to 500 positions in turn: no row changes as the table grows. Rows beyond its end are blank."""
    tallest = GROWING_LENGTHS[-1]
    frames = []
    for length in GROWING_LENGTHS:
        values = np.full((tallest, TABLE_DIM), np.nan, dtype=np.float32)
        values[:length] = table(length, TABLE_DIM).numpy()
        panel = Heatmap(values, f"{length} positions", x_label="dimension", y_label="position", diverging=True)
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


def time_figure(dim: int, scale: float) -> Figure:
    """The sinusoid of t in [0, 1], from which a network's time embedding is computed."""
    t = torch.linspace(0, 1, NUM_TIMES)
    values = embed(t, dim, layout="sin_cos", denominator="half_minus_1", scale=scale).numpy()
    heatmap = Heatmap(
        values.T,
        f"Sines, then cosines, of {dim // 2} frequencies (time_scale {scale:g})",
        x_label="time t",
        y_label="dimension",
        extent=(0, 1, dim, 0),
        diverging=True,
    )
    distance = np.linalg.norm(values - values[NUM_TIMES // 2], axis=1)
    apart = Lines(
        [Curve(t.numpy(), distance)], "How far each t lies from t = 0.5", x_label="time t", y_label="Euclidean distance"
    )
    return Figure([heatmap, apart], title="The sinusoid of time")
