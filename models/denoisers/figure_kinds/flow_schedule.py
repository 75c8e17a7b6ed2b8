"""Figure of a straight-line flow's noise: shares of data and noise, signal-to-noise ratio, training times."""

from __future__ import annotations

import math

import numpy as np

from denoisers.contract import TimeDensity
from denoisers.figures import Curve, Figure, Lines
from denoisers.processes.flow.linear_path import NoiseAt
from denoisers.processes.flow.spec import LogitNormalTime, UniformTime

NUM_TIMES = 201


def flow_schedule_figure(time: TimeDensity, noise_at: NoiseAt = 1) -> Figure:
    """Draw x_t's factors of data and noise, its signal-to-noise ratio in decibels, and the density of training times.

    The ratio is of variances, of data with variance 1. Densities of other kinds than those built in are left out.
    """
    t = np.linspace(0, 1, NUM_TIMES)
    noise = t if noise_at == 1 else 1 - t
    label = "time t (0: data, 1: noise)" if noise_at == 1 else "time t (0: noise, 1: data)"
    formula = "x_t = (1 - t) data + t noise" if noise_at == 1 else "z_t = t data + (1 - t) noise"
    inner = slice(1, -1)  # infinite at both ends
    panels = [
        Lines([Curve(t, 1 - noise, "data"), Curve(t, noise, "noise")], formula, label, "factor"),
        Lines(
            [Curve(t[inner], signal_to_noise(noise[inner]))], "Signal-to-noise ratio", label, "ratio of variances (dB)"
        ),
    ]
    density = time_density(time, t)
    if density is not None:
        panels.append(Lines([Curve(t, density)], f"Training times: {time.kind}", label, "density"))
    return Figure(panels, title="Noise by time, and the times of training", columns=len(panels))


def signal_to_noise(noise: np.ndarray) -> np.ndarray:
    """Compute 20 log10((1 - s) / s) of shares of noise s in (0, 1), in dB."""
    ratio: np.ndarray = 20 * np.log10((1 - noise) / noise)
    return ratio


def time_density(time: TimeDensity, t: np.ndarray) -> np.ndarray | None:
    """Compute the probability density at times t; None for a kind without a closed form here."""
    if isinstance(time, UniformTime):
        return np.ones_like(t)
    if not isinstance(time, LogitNormalTime):
        return None
    inside = (t - time.eps) / (1 - 2 * time.eps)
    density = np.zeros_like(t)
    within = (inside > 0) & (inside < 1)
    s = inside[within]
    z = (np.log(s / (1 - s)) - time.mean) / time.std
    normal = np.exp(-z * z / 2) / (time.std * math.sqrt(2 * math.pi))
    density[within] = normal / (s * (1 - s)) / (1 - 2 * time.eps)
    return density
