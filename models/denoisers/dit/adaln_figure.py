"""Figure of adaLN in a trained DiT: the scale and shift of its norms over t."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoisers.dit.network import DiT
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.adaln import GatedModulation, Modulation

NUM_TIMES = 101
NUM_DIMENSIONS = 4
"""Dimensions drawn one by one."""


def draw_adaln(inputs: FigureInputs) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention, and the change of every block's with t.

    A conditional network is shown under its null class.
    """
    network = inputs.network
    assert isinstance(network, DiT)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.head.weight.device)
    condition = network.condition(t)
    blocks = [_arrays(block.modulations(condition)[0]) for block in network.transformer_blocks()]
    times = t.cpu().numpy()
    middle = len(blocks) // 2
    width = network.spec.width
    panels: list[Panel] = [
        Heatmap(values.T, f"{name} (t)", "time t", "dimension", (0, 1, width, 0), diverging=True)
        for name, values in blocks[middle].items()
    ]
    panels += [_selected(times, blocks[middle]["scale"]), _mean(times, blocks[middle]), _movement(blocks)]
    return Figure(panels, title=f"adaLN before attention in block {middle + 1} of {len(blocks)}, over time")


def _arrays(modulation: Modulation | GatedModulation) -> dict[str, np.ndarray]:
    """Scale, shift and, where there is one, gate: (times, dimensions) each."""
    named: dict[str, Tensor] = modulation._asdict()
    return {name: value.detach().float().cpu().numpy() for name, value in named.items()}


def _selected(times: np.ndarray, scale: np.ndarray) -> Lines:
    dimensions = range(0, scale.shape[1], max(1, scale.shape[1] // NUM_DIMENSIONS))
    curves = [Curve(times, scale[:, dimension], f"dimension {dimension}") for dimension in dimensions]
    return Lines(curves[:NUM_DIMENSIONS], "Scale of a few dimensions", x_label="time t", y_label="scale")


def _mean(times: np.ndarray, arrays: dict[str, np.ndarray]) -> Lines:
    curves = [Curve(times, values.mean(axis=1), name, band=values.std(axis=1)) for name, values in arrays.items()]
    return Lines(curves, "Mean over dimensions, with their standard deviation", x_label="time t", y_label="value")


def _movement(blocks: list[dict[str, np.ndarray]]) -> Lines:
    """Standard deviation over t, averaged over dimensions, by block: 0 means that a block ignores time."""
    numbers = np.arange(1, len(blocks) + 1)
    curves = [
        Curve(numbers, np.array([block[name].std(axis=0).mean() for block in blocks]), name) for name in blocks[0]
    ]
    return Lines(curves, "How much each block's modulation moves with t", "block", "standard deviation over t")
