"""Figures of a U-Net: those of a trained network by kind, and those that need no weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from denoisers.figure_kinds.embeddings import time_figure
from denoisers.figure_kinds.flow import draw_features_of, flow_schedule_figure, velocity_makers
from denoisers.figure_kinds.network import shape_text
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Arrow, Box, Curve, Diagram, Figure, Heatmap, Lines, Panel
from denoisers.unet.network import UNet
from denoisers.unet.spec import UNetObjectiveSpec, UNetSpec

NUM_TIMES = 101


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


def draw_time_shift(inputs: FigureInputs) -> Figure:
    """Draw `time_shift`: each residual block's shift of its channels over t.

    A conditional network is shown under its null class.
    """
    network = inputs.trained(UNet)
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

    def to_tokens(pixels: Tensor) -> tuple[Tensor, int, int]:
        return pixels.flatten(2).transpose(1, 2), *pixels.shape[2:]

    return draw_features_of(inputs, inputs.trained(UNet).middle2, to_tokens, "in the middle")


def forward_pass_figure(spec: UNetSpec) -> Figure:
    """Draw the way down, the middle, the way up with its skip connections, and the conditioning of every block."""
    size, fine, coarse = spec.image_size, spec.width, 2 * spec.width

    def at(channels: int, divisor: int) -> str:
        return shape_text((channels, size // divisor, size // divisor))

    image = shape_text((spec.channels, size, size))
    boxes = [
        Box("Noised image x_t", image, 0, 0, "data"),
        Box("Convolution 3x3, block down1", at(fine, 1), 0, 1),
        Box("Stride 2, block down2", at(coarse, 2), 0, 2),
        Box("Stride 2, middle1, middle2", at(coarse, 4), 0.5, 3.1),
        Box("Upsample, concatenate, up2", f"{2 * coarse} → {at(fine, 2)}", 1, 2),
        Box("Upsample, concatenate, up1", f"{2 * fine} → {at(fine, 1)}", 1, 1),
        Box("GroupNorm, SiLU, 3x3: velocity v", image, 1, 0, "data"),
        Box("Time t: sinusoid", f"{spec.time_width} numbers", 2, 0, "condition"),
        Box("MLP" if spec.num_classes is None else "MLP, + class embedding", f"{spec.time_width} numbers", 2, 1,
            "condition"),
        Box("Shift of channels", "SiLU, Linear: one in every block", 2, 2, "condition"),
    ]  # fmt: skip
    arrows = [
        Arrow(0, 1), Arrow(1, 2), Arrow(2, 3), Arrow(3, 4), Arrow(4, 5), Arrow(5, 6),
        Arrow(1, 5), Arrow(2, 4), Arrow(7, 8), Arrow(8, 9), Arrow(9, 4),
    ]  # fmt: skip
    alt = (
        "Diagram of the U-Net: down to half and a quarter of the image, a middle, up again with skip connections, "
        "and a shift by time in every block."
    )
    return Figure([Diagram(boxes, arrows)], title="The forward pass of the U-Net", columns=1, alt=alt)
