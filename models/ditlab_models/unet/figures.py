"""Figures of a U-Net: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ditlab_models.figure_kinds.embeddings import time_figure
from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import Arrow, Box, Curve, Diagram, Figure, Heatmap, Lines, Panel
from ditlab_models.processes.flow_figures import (
    FlowProbe,
    draw_features_of,
    flow_schedule_figure,
    velocity_makers,
    velocity_probe,
)
from ditlab_models.processes.gaussian import linear_schedule
from ditlab_models.processes.gaussian_figures import gaussian_makers, noise_probe
from ditlab_models.processes.specs import GaussianSpec
from ditlab_models.tensors import to_numpy
from ditlab_models.unet.network import UNet
from ditlab_models.unet.spec import UNetObjectiveSpec, UNetSpec

NUM_TIMES = 101


def figure_makers(objective: UNetObjectiveSpec | GaussianSpec) -> FigureMakers:
    """Return the makers of a trained network's figures by kind."""
    if isinstance(objective, GaussianSpec):
        schedule = linear_schedule(objective.noise)
        return {
            **gaussian_makers(schedule),
            "time_shift": lambda inputs: draw_time_shift(inputs, last=schedule.num_steps - 1),
            "features": lambda inputs: draw_features(inputs, noise_probe(inputs, schedule)),
        }
    return {
        **velocity_makers(objective.time),
        "time_shift": draw_time_shift,
        "features": lambda inputs: draw_features(inputs, velocity_probe(inputs)),
    }


def static_figures(spec: UNetSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: the sinusoid of time, the noise schedule, the forward
    pass.
    """
    return {
        "time_embedding": time_figure(spec.time_width, spec.time_scale),
        "noise_schedule": flow_schedule_figure(UNetObjectiveSpec().time),
        "forward_pass": forward_pass_figure(spec),
    }


def draw_time_shift(inputs: FigureInputs, last: float = 1.0) -> Figure:
    """Draw `time_shift`: each residual block's shift of its channels over t, 0 to `last`; of the
    null class, if there are classes."""
    network = inputs.trained(UNet)
    condition = network.condition(
        torch.linspace(0, last, NUM_TIMES, device=network.conv_out.weight.device)
    )
    panels: list[Panel] = []
    movement = []
    for name, block in network.blocks().items():
        shift = to_numpy(block.time_shift(condition).float())  # (times, channels)
        extent = (0, last, shift.shape[1], 0)
        panels.append(
            Heatmap(shift.T, name, "time t", "channel", extent, diverging=True, unit="shift")
        )
        movement.append(shift.std(axis=0).mean())
    curve = Curve(np.arange(1, len(movement) + 1), np.array(movement))
    title = "How much each block's shift moves with t"
    panels.append(Lines([curve], title, "block, in order of the pass", "standard deviation over t"))
    return Figure(panels, title="The shift that time adds to every channel", columns=3)


def draw_features(inputs: FigureInputs, probe: FlowProbe) -> Figure:
    """Draw `features`: principal components of the middle's pixels, of held-out images a quarter of
    which is noise.
    """
    middle = inputs.trained(UNet).middle2
    return draw_features_of(
        inputs, probe, middle, lambda x: (x.flatten(2).mT, *x.shape[2:]), "in the middle"
    )


def forward_pass_figure(spec: UNetSpec) -> Figure:
    """Draw the way down, the middle, the way up with its skip connections, and the conditioning of
    every block.
    """
    fine = spec.width
    coarse = 2 * spec.width
    full, half, quarter = (
        f"{side} x {side}" for side in (spec.image_size // divisor for divisor in (1, 2, 4))
    )
    image = f"{spec.channels} x {full}"
    time = f"{spec.time_width} numbers"
    embedding = "MLP" if spec.num_classes is None else "MLP, + class embedding"
    boxes = [
        Box("Noised image x_t", image, 0, 0, "data"),
        Box("Convolution 3x3, block down1", f"{fine} x {full}", 0, 1),
        Box("Stride 2, block down2", f"{coarse} x {half}", 0, 2),
        Box("Stride 2, middle1, middle2", f"{coarse} x {quarter}", 0.5, 3.1),
        Box("Upsample, concatenate, up2", f"{2 * coarse} → {fine} x {half}", 1, 2),
        Box("Upsample, concatenate, up1", f"{2 * fine} → {fine} x {full}", 1, 1),
        Box("GroupNorm, SiLU, 3x3: velocity v", image, 1, 0, "data"),
        Box("Time t: sinusoid", time, 2, 0, "condition"),
        Box(embedding, time, 2, 1, "condition"),
        Box("Shift of channels", "SiLU, Linear: one in every block", 2, 2, "condition"),
    ]
    pairs = [*((i, i + 1) for i in range(6)), (1, 5), (2, 4), (7, 8), (8, 9), (9, 4)]
    arrows = [Arrow(start, end) for start, end in pairs]
    return Figure([Diagram(boxes, arrows)], title="The forward pass of the U-Net", columns=1)
