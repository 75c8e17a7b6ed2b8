"""Figures of a U-Net: the effect of time on its channels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.embedding_figures import time_figure
from denoisers.processes.flow.figures import draw_samples, draw_trajectory
from denoisers.unet.network import UNet
from denoisers.unet.spec import UNetSpec

NUM_TIMES = 101


def draw_time_shift(inputs: FigureInputs) -> Figure:
    """Draw `time_shift`: each residual block's shift of its channels over t.

    A conditional network is shown under its null class.
    """
    network = inputs.network
    assert isinstance(network, UNet)
    t = torch.linspace(0, 1, NUM_TIMES, device=network.conv_out.weight.device)
    condition = network.condition(t)
    shifts = {
        name: block.time_shift(condition).detach().float().cpu().numpy()  # (times, channels)
        for name, block in network.blocks().items()
    }
    panels: list[Panel] = [
        Heatmap(shift.T, name, "time t", "channel", (0, 1, shift.shape[1], 0), diverging=True)
        for name, shift in shifts.items()
    ]
    numbers = np.arange(1, len(shifts) + 1)
    movement = np.array([shift.std(axis=0).mean() for shift in shifts.values()])
    title = "How much each block's shift moves with t"
    panels.append(Lines([Curve(numbers, movement)], title, "block, in order of the pass", "standard deviation over t"))
    return Figure(panels, title="The shift that time adds to every channel", columns=3)


FIGURES: Mapping[str, FigureMaker] = {
    "samples": draw_samples,
    "trajectory": draw_trajectory,
    "time_shift": draw_time_shift,
}


def static_figures(spec: UNetSpec) -> Mapping[str, Figure]:
    """Draw `time_embedding`, which needs no weights."""
    return {"time_embedding": time_figure(spec.time_width, spec.time_scale)}
