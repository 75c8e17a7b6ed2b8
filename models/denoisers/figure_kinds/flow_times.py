"""Figures of an image flow by time: noised images with the network's guesses, and the loss.

B batch, C channels, H and W height and width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from denoisers.figures import Curve, Figure, ImageGrid, Lines
from denoisers.processes.flow.figures import to_pictures
from denoisers.processes.flow.linear_path import (
    NoiseAt,
    Velocity,
    endpoints,
    gaussian_velocity,
    interpolate,
    velocity_target,
)

STRIP_NOISE = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Shares of noise in a strip."""
NUM_STRIPS = 4
NUM_LEVELS = 20
MAX_IMAGES = 32


@dataclass(frozen=True)
class FlowProbe:
    """A trained velocity, and images to noise."""

    velocity: Velocity
    """(x (B, C, H, W), t (B,)) -> (B, C, H, W); of as many images as `image` holds, or of the first."""
    image: Tensor
    """(B, C, H, W) in [-1, 1]."""
    noise: Tensor
    """Standard normal, in the images' shape."""
    noise_at: NoiseAt = 1
    """The end of time that is noise."""

    def at(self, share: float) -> Tensor:
        """Times (B,) at which the share of noise is this."""
        return torch.full((len(self.image),), share if self.noise_at == 1 else 1 - share).to(self.image)


def denoising_figure(probe: FlowProbe) -> Figure:
    """Draw a few images at rising noise, and under each the image that the network guesses from it in one step."""
    shown = min(NUM_STRIPS, len(probe.image))
    strips: list[list[Tensor]] = []
    captions: list[list[str]] = []
    errors = []
    for share in STRIP_NOISE:
        t = probe.at(share)
        x_t = interpolate(probe.image, probe.noise, t, probe.noise_at)
        start, end = endpoints(x_t, probe.velocity(x_t, t).to(x_t), t)
        guess = start if probe.noise_at == 1 else end
        error = (guess - probe.image).square().mean((1, 2, 3))
        errors.append(float(error.mean()))
        strips.append([x_t[:shown], guess[:shown]])
        captions.append([f"t = {float(t[0]):.2f}", *(f"MSE {float(value):.3f}" for value in error[:shown])])
    panels = []
    for number in range(shown):
        noised = torch.stack([probe.image[number], *(strip[0][number] for strip in strips)])
        guessed = torch.stack([probe.image[number], *(strip[1][number] for strip in strips)])
        names = ["image", *(each[0] for each in captions), "image", *(each[number + 1] for each in captions)]
        pictures = np.concatenate((to_pictures(noised), to_pictures(guessed)))
        panels.append(ImageGrid(pictures, names, len(STRIP_NOISE) + 1))
    title = "Noised images (upper rows), and the network's guess in one step (lower rows)"
    alt = (
        f"{shown} held-out images with {STRIP_NOISE[0]:.0%} to {STRIP_NOISE[-1]:.0%} of noise, and below each what the "
        f"network guesses from it in one step: mean squared error {errors[0]:.3f} to {errors[-1]:.3f}."
    )
    return Figure(panels, title=title, columns=1 if len(STRIP_NOISE) > 4 else 2, alt=alt)


def loss_by_time_figure(probe: FlowProbe) -> Figure:
    """Draw the velocity's mean squared error by time, beside two guesses that need no network.

    The bands are two standard errors over images. `no velocity` predicts 0; `each pixel's mean and spread` is the best
    guess that knows these alone, of the images drawn here.
    """
    times, by_time = [], []
    mean, std = probe.image.mean(0), probe.image.std(0, correction=0) if len(probe.image) > 1 else torch.zeros(())
    target = velocity_target(probe.image, probe.noise, probe.noise_at)
    for level in range(NUM_LEVELS):
        share = (level + 0.5) / NUM_LEVELS
        t = probe.at(share)
        x_t = interpolate(probe.image, probe.noise, t, probe.noise_at)
        noise_share = torch.tensor(share).to(x_t)
        gaussian = gaussian_velocity(x_t, noise_share, mean, std)
        guesses = (probe.velocity(x_t, t).to(x_t), gaussian if probe.noise_at == 1 else -gaussian)
        errors = [(guess - target).square().mean((1, 2, 3)) for guess in (*guesses, torch.zeros_like(target))]
        times.append(float(t[0]))
        by_time.append(torch.stack(errors))
    losses = torch.stack(by_time).double().cpu().numpy()  # (levels, guesses, B)
    x = np.array(times)
    error = 2 * losses.std(axis=2) / losses.shape[2] ** 0.5
    names = ("network", "each pixel's mean and spread", "no velocity")
    curves = [
        Curve(x, losses[:, place].mean(axis=1), name, error[:, place] if place == 0 else None)
        for place, name in enumerate(names)
    ]
    ends = "noise" if probe.noise_at == 1 else "data", "data" if probe.noise_at == 1 else "noise"
    label = f"time t (0: {ends[1]}, 1: {ends[0]})"
    lines = Lines(curves, f"Mean over {len(probe.image)} held-out images", label, "squared error of v, per pixel value")
    return Figure([lines], title="Loss by time", columns=1)
