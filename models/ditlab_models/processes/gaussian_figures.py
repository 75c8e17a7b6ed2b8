"""Figures of the Gaussian process: its schedule, and a network that predicts noise, seen along
straight lines.

x_t = signal x0 + spread noise is (signal + spread) times a point of the straight line from x0 to
the noise, at the line's time spread / (signal + spread). Figures of flow matching show any network
of noise so, in the same units.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import Curve, Figure, Lines
from ditlab_models.processes.flow_figures import FlowProbe, probe_makers, velocity_probe
from ditlab_models.processes.gaussian import NoiseSchedule
from ditlab_models.tensors import per_sample


def gaussian_makers(schedule: NoiseSchedule) -> FigureMakers:
    """Return makers by kind."""
    makers = probe_makers(lambda inputs: noise_probe(inputs, schedule))
    return {**makers, "noise_schedule": lambda inputs: noise_schedule_figure(schedule)}


def network_inputs(x: Tensor, t: Tensor, schedule: NoiseSchedule) -> tuple[Tensor, Tensor]:
    """Turn points of straight lines (B, ...) at times t (B,) into x_t and the nearest timesteps
    (B,) of t's dtype.
    """
    signal = schedule.sqrt_alphas_cumprod
    spread = schedule.sqrt_one_minus_alphas_cumprod
    line_times = spread / (signal + spread)  # rises with the timestep
    steps = (line_times[None] - t.detach().double().cpu()[:, None]).abs().argmin(1)
    factor = per_sample((signal + spread)[steps].to(x), x)
    return factor * x, steps.to(t)


def noise_probe(inputs: FigureInputs, schedule: NoiseSchedule) -> FlowProbe:
    """Return the velocity that follows from the network's noise, and noise for the batch's first
    images.
    """
    probe = velocity_probe(inputs)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        noise = probe.velocity(*network_inputs(x, t, schedule))[:, : x.shape[1]]
        return (noise - x) / per_sample((1 - t).clamp(min=1e-3).to(x), x)

    return FlowProbe(velocity, probe.image, probe.noise)


def noise_schedule_figure(schedule: NoiseSchedule) -> Figure:
    """Draw beta_t, the factors of signal and noise, their variances, and the signal-to-noise ratio
    in decibels.
    """
    t = np.arange(schedule.num_steps)
    bar = schedule.alphas_cumprod.numpy()
    half = np.flatnonzero(bar < 0.5)
    if len(half):
        title = f"As much noise as signal from t = {half[0]} on"
    else:
        title = "Shares of the variance"
    label = "timestep t"
    factors = [
        Curve(t, schedule.sqrt_alphas_cumprod.numpy(), "signal, √ᾱ_t"),
        Curve(t, schedule.sqrt_one_minus_alphas_cumprod.numpy(), "noise, √(1 - ᾱ_t)"),
    ]
    panels = [
        Lines([Curve(t, schedule.betas.numpy())], "Share of variance replaced at t", label, "β_t"),
        Lines(factors, "x_t = √ᾱ_t x_0 + √(1 - ᾱ_t) noise", label, "factor"),
        Lines(
            [Curve(t, bar, "signal, ᾱ_t"), Curve(t, 1 - bar, "noise, 1 - ᾱ_t")],
            title,
            label,
            "share of variance",
        ),
        Lines(
            [Curve(t, 10 * np.log10(bar / (1 - bar)))],
            "Signal-to-noise ratio",
            label,
            "ratio of variances (dB)",
        ),
    ]
    return Figure(panels, title=f"Noise by timestep, T = {schedule.num_steps}")
