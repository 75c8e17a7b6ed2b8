"""Figure of the effective receptive field: how much each input pixel moves the output's centre (arXiv:1701.04128)."""

from __future__ import annotations

import numpy as np
import torch

from denoisers.figure_kinds.flow_times import FlowProbe
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.processes.flow.linear_path import interpolate

SHARES = (0.9, 0.5, 0.1)
"""Mostly noise, half noise, hardly any noise."""


def receptive_field_figure(probe: FlowProbe) -> Figure:
    """Draw the mean absolute gradient of the centre's velocity by each input pixel, and its share within a distance."""
    height, width = probe.image.shape[2:]
    centre = (height // 2, width // 2)
    fields = [input_gradient(probe, share, centre) for share in SHARES]
    times = [float(probe.at(share)[0]) for share in SHARES]
    panels: list[Panel] = [
        Heatmap(
            field, f"t = {time:g}, the marked pixel itself {field[centre]:.2g}", "column (pixels)", "row (pixels)",
            mark=centre, limits=(0.0, _largest_other(field, centre)), unit="|dv / dx|",
        )
        for time, field in zip(times, fields, strict=True)
    ]  # fmt: skip
    rows, columns = np.indices((height, width))
    distance = np.maximum(np.abs(rows - centre[0]), np.abs(columns - centre[1]))
    radii = np.arange(int(distance.max()) + 1)
    curves = [
        Curve(
            radii,
            np.array([field[distance <= radius].sum() for radius in radii]) / max(field.sum(), 1e-30),
            f"t = {time:g}",
        )
        for time, field in zip(times, fields, strict=True)
    ]
    counted = np.array([(distance <= radius).mean() for radius in radii])
    curves.append(Curve(radii, counted, "if every pixel counted alike"))
    panels.append(Lines(curves, "Share within a distance", "distance from the centre (pixels)", "share of |dv / dx|"))
    return Figure(panels, title="What the velocity of the marked pixel depends on")


def _largest_other(field: np.ndarray, centre: tuple[int, int]) -> float:
    """Largest value but the centre's own, which is many times the others': with it in the scale they would look 0."""
    others = field.copy()
    others[centre] = 0.0
    return float(others.max()) or 1.0


def input_gradient(probe: FlowProbe, share: float, pixel: tuple[int, int]) -> np.ndarray:
    """Mean over images and channels of |d v[pixel] / d x|, at a share of noise: (height, width)."""
    t = probe.at(share)
    with torch.enable_grad():
        x = interpolate(probe.image, probe.noise, t, probe.noise_at).detach().requires_grad_()
        velocity = probe.velocity(x, t)[:, :, pixel[0], pixel[1]].sum()
        (gradient,) = torch.autograd.grad(velocity, x)
    field: np.ndarray = gradient.abs().mean((0, 1)).float().cpu().numpy()
    return field
