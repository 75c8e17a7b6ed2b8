"""Figure of adaptive norms: the modulation of a network's blocks over the noise level or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.adaln import GatedModulation, Modulation

NUM_DIMENSIONS = 4
"""Dimensions drawn one by one."""


def modulation_arrays(modulation: Modulation | GatedModulation) -> dict[str, np.ndarray]:
    """Return scale, shift and, where there is one, gate: (times, dimensions) each."""
    named: dict[str, Tensor] = modulation._asdict()
    return {name: value.detach().float().cpu().numpy() for name, value in named.items()}


def modulation_figure(
    blocks: Sequence[Mapping[str, np.ndarray]], times: np.ndarray, x_label: str, branch: str = "attention"
) -> Figure:
    """Draw the middle block's modulation, a few of its dimensions, its mean, and how much every block's moves.

    `blocks` hold scale, shift and perhaps gate, (times, dimensions) each; `times` (times,) rise evenly.
    """
    middle = len(blocks) // 2
    symbol = x_label.split()[-1]
    width = blocks[middle]["scale"].shape[1]
    extent = (float(times[0]), float(times[-1]), float(width), 0.0)
    panels: list[Panel] = [
        Heatmap(values.T, f"{name}({symbol})", x_label, "dimension", extent, diverging=True, unit=name)
        for name, values in blocks[middle].items()
    ]
    panels += [_selected(times, blocks[middle]["scale"], x_label), _mean(times, blocks[middle], x_label)]
    panels.append(_movement(blocks, symbol))
    title = f"adaLN before {branch} in block {middle + 1} of {len(blocks)}, over {x_label}"
    return Figure(panels, title=title, columns=len(blocks[middle]))


def _selected(times: np.ndarray, scale: np.ndarray, x_label: str) -> Lines:
    dimensions = range(0, scale.shape[1], max(1, scale.shape[1] // NUM_DIMENSIONS))
    curves = [Curve(times, scale[:, dimension], f"dimension {dimension}") for dimension in dimensions]
    return Lines(curves[:NUM_DIMENSIONS], "Scale of a few dimensions", x_label, "scale")


def _mean(times: np.ndarray, arrays: Mapping[str, np.ndarray], x_label: str) -> Lines:
    curves = [Curve(times, values.mean(axis=1), name, band=values.std(axis=1)) for name, values in arrays.items()]
    return Lines(curves, "Mean over dimensions, with their standard deviation", x_label, "value")


def _movement(blocks: Sequence[Mapping[str, np.ndarray]], symbol: str) -> Lines:
    """Standard deviation over time, averaged over dimensions, by block: 0 means that a block ignores time."""
    numbers = np.arange(1, len(blocks) + 1)
    curves = [
        Curve(numbers, np.array([block[name].std(axis=0).mean() for block in blocks]), name) for name in blocks[0]
    ]
    return Lines(
        curves, f"How much each block's modulation moves with {symbol}", "block", f"standard deviation over {symbol}"
    )
