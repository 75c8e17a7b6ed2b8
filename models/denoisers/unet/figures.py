"""Figures of a U-Net: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from denoisers.figure_kinds.flow_schedule import flow_schedule_figure
from denoisers.figure_kinds.velocity_kinds import draw_features_of, velocity_makers
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.layers.embedding_figures import time_figure
from denoisers.unet.forward_pass import forward_pass_figure
from denoisers.unet.network import UNet
from denoisers.unet.spec import UNetObjectiveSpec, UNetSpec

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
        Heatmap(shift.T, name, "time t", "channel", (0, 1, shift.shape[1], 0), diverging=True, unit="shift")
        for name, shift in shifts.items()
    ]
    numbers = np.arange(1, len(shifts) + 1)
    movement = np.array([shift.std(axis=0).mean() for shift in shifts.values()])
    title = "How much each block's shift moves with t"
    panels.append(Lines([Curve(numbers, movement)], title, "block, in order of the pass", "standard deviation over t"))
    return Figure(panels, title="The shift that time adds to every channel", columns=3)


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the middle's pixels, of held-out images a quarter of which is noise."""
    network = inputs.network
    assert isinstance(network, UNet)

    def to_tokens(pixels: Tensor) -> tuple[Tensor, int, int]:
        return pixels.flatten(2).transpose(1, 2), *pixels.shape[2:]

    return draw_features_of(inputs, network.middle2, to_tokens, "in the middle")


def figure_makers(objective: UNetObjectiveSpec) -> Mapping[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind."""
    return {**velocity_makers(objective.time), "time_shift": draw_time_shift, "features": draw_features}


def static_figures(spec: UNetSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: the sinusoid of time, the noise schedule, the forward pass."""
    return {
        "time_embedding": time_figure(spec.time_width, spec.time_scale),
        "noise_schedule": flow_schedule_figure(UNetObjectiveSpec().time),
        "forward_pass": forward_pass_figure(spec),
    }
