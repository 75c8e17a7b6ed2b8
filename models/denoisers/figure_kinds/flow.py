"""Figures of image flows: their noise, noised images with the network's guesses, loss by time, receptive field.

The effective receptive field is how much each input pixel moves the output's centre (arXiv:1701.04128).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import TimeDensity
from denoisers.figure_kinds.network import module_outputs, token_features_figure
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Curve, Figure, Heatmap, ImageGrid, Lines, Panel
from denoisers.processes.flow import NoiseAt, Velocity, endpoints, gaussian_velocity, interpolate, velocity_target
from denoisers.processes.flow_figures import draw_samples, draw_trajectory, to_pictures
from denoisers.processes.specs import LogitNormalTime, UniformTime

FEATURES_TIME = 0.25
"""Time t, the share of noise, of the images whose features are drawn."""
NUM_TIMES = 201
STRIP_NOISE = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Shares of noise in a strip."""
NUM_STRIPS = 4
NUM_LEVELS = 20
MAX_IMAGES = 32
SHARES = (0.9, 0.5, 0.1)
"""Mostly noise, half noise, hardly any noise."""


def velocity_makers(time: TimeDensity) -> Mapping[str, FigureMaker]:
    """Return makers by kind; `time` is the density of the run's training times."""

    def draw_noise_schedule(_inputs: FigureInputs) -> Figure:
        return flow_schedule_figure(time)

    return {
        "samples": draw_samples,
        "trajectory": draw_trajectory,
        "denoising": draw_denoising,
        "loss_by_time": draw_loss_by_time,
        "receptive_field": draw_receptive_field,
        "noise_schedule": draw_noise_schedule,
    }


def draw_denoising(inputs: FigureInputs) -> Figure:
    """Draw `denoising`: held-out images at rising noise, and the network's guess from each in one step."""
    return denoising_figure(velocity_probe(inputs))


def draw_loss_by_time(inputs: FigureInputs) -> Figure:
    """Draw `loss_by_time`: the velocity's error on held-out images by time, beside guesses that need no network."""
    return loss_by_time_figure(velocity_probe(inputs))


def draw_receptive_field(inputs: FigureInputs) -> Figure:
    """Draw `receptive_field`: the input pixels on which the velocity of the centre depends."""
    return receptive_field_figure(velocity_probe(inputs))


def draw_features_of(
    inputs: FigureInputs, module: nn.Module, to_tokens: Callable[[Tensor], tuple[Tensor, int, int]], where: str
) -> Figure:
    """Draw the principal components of what a module of the network puts out, for images at `FEATURES_TIME`.

    `to_tokens` turns the output into tokens (B, rows * columns, D), rows and columns; `where` names the module.
    """
    probe = velocity_probe(inputs)
    t = probe.at(FEATURES_TIME)
    x_t = interpolate(probe.image, probe.noise, t)
    (output,) = module_outputs([module], lambda: probe.velocity(x_t, t))
    tokens, rows, columns = to_tokens(output)
    labels = [str(value) for value in inputs.batch["label"][: len(x_t)].tolist()] if "label" in inputs.batch else []
    place = f"{where}, t = {FEATURES_TIME:g}"
    return token_features_figure(tokens.float().cpu().numpy(), rows, columns, to_pictures(x_t), labels, place)


def velocity_probe(inputs: FigureInputs) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own classes."""
    network = inputs.network
    image = inputs.batch["image"][:MAX_IMAGES]
    noise = inputs.noise_like(image)
    label = inputs.batch["label"][:MAX_IMAGES] if getattr(network, "label", None) is not None else None
    dtype = next(network.parameters()).dtype

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        predicted: Tensor = network(x.to(dtype), t.to(dtype), label)
        return predicted.to(x)

    return FlowProbe(velocity, image, noise)


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
            [Curve(t[inner], 20 * np.log10((1 - noise[inner]) / noise[inner]))],
            "Signal-to-noise ratio",
            label,
            "ratio of variances (dB)",
        ),
    ]
    density = time_density(time, t)
    if density is not None:
        panels.append(Lines([Curve(t, density)], f"Training times: {time.kind}", label, "density"))
    return Figure(panels, title="Noise by time, and the times of training", columns=len(panels))


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
