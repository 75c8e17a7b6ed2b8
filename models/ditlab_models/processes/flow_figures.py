"""Figures of image flows: samples, noise by time, guesses in one step, loss by time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ditlab_models.contract import ClassSampler, TimeDensity
from ditlab_models.figure_kinds.network import module_outputs, token_features_figure
from ditlab_models.figure_makers import FigureInputs, FigureMakers
from ditlab_models.figures import Curve, Figure, ImageGrid, Lines, evenly_spaced
from ditlab_models.processes.flow import (
    NoiseAt,
    Velocity,
    endpoints,
    gaussian_velocity,
    interpolate,
    velocity_target,
)
from ditlab_models.processes.specs import LogitNormalTime, UniformTime
from ditlab_models.tensors import to_numpy

NUM_SAMPLES = 64
NUM_STILL_TIMES = 7
"""Columns of a trajectory's still."""
NUM_TRAJECTORIES = 4
"""Rows of a trajectory's still."""
MAX_FRAMES = 26
FEATURES_TIME = 0.25
"""Time t, the share of noise, of the images whose features are drawn."""
NUM_TIMES = 201
STRIP_NOISE = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Shares of noise in a strip."""
NUM_STRIPS = 4
NUM_LEVELS = 20
MAX_IMAGES = 32
TIME_LABELS = {0: "time t (0: noise, 1: data)", 1: "time t (0: data, 1: noise)"}
"""Axis of time, by the end that is noise."""


def velocity_makers(time: TimeDensity) -> FigureMakers:
    """Return makers by kind; `time` is the density of the run's training times."""
    return {
        **probe_makers(velocity_probe),
        "noise_schedule": lambda inputs: flow_schedule_figure(time),
    }


def probe_makers(probe: Callable[[FigureInputs], FlowProbe]) -> FigureMakers:
    """Return makers by kind; `probe` gives the velocity and the images of a figure's inputs."""
    return {
        "samples": draw_samples,
        "trajectory": draw_trajectory,
        "denoising": lambda inputs: denoising_figure(probe(inputs)),
        "loss_by_time": lambda inputs: loss_by_time_figure(probe(inputs)),
    }


def to_pictures(images: Tensor) -> np.ndarray:
    """Convert (num, C, H, W) in [-1, 1] to (num, H, W, 3) in [0, 1]; (num, H, W), a mean, of other
    than 3 channels. Values that are not finite become NaN.
    """
    unit = (images.detach().float().cpu() + 1) / 2
    unit = unit.clamp(0, 1).masked_fill(~unit.isfinite(), math.nan)
    return to_numpy(unit.permute(0, 2, 3, 1) if unit.shape[1] == 3 else unit.mean(1))


def class_name(number: int, names: Sequence[str]) -> str:
    """Return a class's name; its number, where it has none."""
    name = names[number] if number < len(names) else ""
    return name or str(number)


def to_grey(images: Tensor) -> np.ndarray:
    """Convert (num, channels, height, width) in [-1, 1] to (num, height, width) in [0, 1]: the mean
    of the channels.
    """
    return to_pictures(images.mean(1, keepdim=True))


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: as many as fill rows of 8, or rows of every class."""
    conditions = inputs.sampler.conditions(NUM_SAMPLES)
    num = NUM_SAMPLES
    if "label" in conditions:
        num -= num % len(conditions["label"].unique())
        conditions = {name: values[:num] for name, values in conditions.items()}
    return inputs.sampler.show(inputs.samples(conditions, num))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: a few samples at several times from t = 1 to t = 0, and at all times as an
    animation.
    """
    conditions = inputs.sampler.conditions(NUM_TRAJECTORIES)
    samples = inputs.samples(conditions, NUM_TRAJECTORIES, trajectory=True)
    assert samples.trajectory is not None
    return trajectory_figure(
        samples.trajectory, torch.linspace(1, 0, len(samples.trajectory)).tolist()
    )


def trajectory_figure(trajectory: Tensor, times: Sequence[float]) -> Figure:
    """Draw frames (frames, num, channels, height, width), noise first: a row for each sample, a
    column for a time.
    """
    num_frames, num = trajectory.shape[:2]
    still_times = evenly_spaced(num_frames - 1, NUM_STILL_TIMES)
    # (num * times, channels, height, width)
    still = trajectory[still_times].transpose(0, 1).flatten(0, 1)
    captions = [f"t={times[frame]:.2f}" for frame in still_times] * num
    frames = []
    for frame in evenly_spaced(num_frames - 1, MAX_FRAMES):
        grid = ImageGrid(to_pictures(trajectory[frame]), columns=num)
        frames.append(Figure([grid], title=f"t = {times[frame]:.2f}", columns=1))
    title = f"From noise at t={times[0]:g} to data at t={times[-1]:g}"
    return Figure(
        [ImageGrid(to_pictures(still), captions, len(still_times))], title, columns=1, frames=frames
    )


def draw_features_of(
    inputs: FigureInputs,
    probe: FlowProbe,
    module: nn.Module,
    to_tokens: Callable[[Tensor], tuple[Tensor, int, int]],
    where: str,
) -> Figure:
    """Draw the principal components of the output of the module at `where`, for the probe's images
    at `FEATURES_TIME`.

    `to_tokens` turns it into tokens (B, rows * columns, D), rows and columns.
    """
    t = probe.at(FEATURES_TIME)
    x_t = interpolate(probe.image, probe.noise, t)
    (output,) = module_outputs([module], lambda: probe.velocity(x_t, t))
    tokens, rows, columns = to_tokens(output)
    labels: list[str] = []
    if "label" in inputs.batch:
        if isinstance(inputs.sampler, ClassSampler):
            names = inputs.sampler.class_names
        else:
            names = ()
        labels = [
            class_name(number, names) for number in inputs.batch["label"][: len(x_t)].tolist()
        ]
    place = f"{where}, t = {FEATURES_TIME:g}"
    return token_features_figure(
        to_numpy(tokens.float()), rows, columns, to_pictures(x_t), labels, place
    )


@dataclass(frozen=True)
class FlowProbe:
    """A trained velocity, and images to noise."""

    velocity: Velocity
    """(x (B, C, H, W), t (B,)) -> (B, C, H, W); of as many images as `image` holds, or of the
    first.
    """
    image: Tensor
    """(B, C, H, W) in [-1, 1]."""
    noise: Tensor
    """Standard normal, in the images' shape."""
    noise_at: NoiseAt = 1
    """The end of time that is noise."""

    def at(self, share: float) -> Tensor:
        """Times (B,) at which the share of noise is this."""
        t = share if self.noise_at == 1 else 1 - share
        return torch.full((len(self.image),), t).to(self.image)


def velocity_probe(inputs: FigureInputs) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own
    classes.
    """
    network = inputs.network
    image = inputs.batch["image"][:MAX_IMAGES]
    label = None
    if getattr(network, "label", None) is not None:
        label = inputs.batch["label"][:MAX_IMAGES]
    dtype = next(network.parameters()).dtype

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        predicted: Tensor = network(x.to(dtype), t.to(dtype), label)
        return predicted.to(x)

    return FlowProbe(velocity, image, inputs.noise_like(image))


def flow_schedule_figure(time: TimeDensity, noise_at: NoiseAt = 1) -> Figure:
    """Draw x_t's factors of data and noise, their ratio in decibels, and the density of training
    times, where it is known."""
    t = np.linspace(0, 1, NUM_TIMES)
    noise = t if noise_at == 1 else 1 - t
    label = TIME_LABELS[noise_at]
    if noise_at == 1:
        formula = "x_t = (1 - t) data + t noise"
    else:
        formula = "z_t = t data + (1 - t) noise"
    inner = slice(1, -1)  # infinite at both ends
    ratio = Curve(t[inner], 20 * np.log10((1 - noise[inner]) / noise[inner]))
    panels = [
        Lines([Curve(t, 1 - noise, "data"), Curve(t, noise, "noise")], formula, label, "factor"),
        Lines([ratio], "Signal-to-noise ratio", label, "ratio of variances (dB)"),
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


def denoising_figure(probe: FlowProbe) -> Figure:
    """Draw a few images at rising noise, and under each the image that the network guesses from it
    in one step.
    """
    names = ["image"]
    noised = [probe.image]
    guesses = [probe.image]
    for share in STRIP_NOISE:
        t = probe.at(share)
        x_t = interpolate(probe.image, probe.noise, t, probe.noise_at)
        start, end = endpoints(x_t, probe.velocity(x_t, t).to(x_t), t)
        noised.append(x_t)
        guesses.append(start if probe.noise_at == 1 else end)
        names.append(f"t = {float(t[0]):.2f}")
    panels = []
    for number, image in enumerate(probe.image[:NUM_STRIPS]):
        errors = [float((guess[number] - image).square().mean()) for guess in guesses[1:]]
        captions = [*names, "image", *(f"MSE {error:.3f}" for error in errors)]
        pictures = to_pictures(torch.stack([each[number] for each in (*noised, *guesses)]))
        panels.append(ImageGrid(pictures, captions, len(names)))
    title = "Noised images (upper rows), and the network's guess in one step (lower rows)"
    return Figure(panels, title=title, columns=1)


def loss_by_time_figure(probe: FlowProbe) -> Figure:
    """Draw the velocity's mean squared error by time, beside two guesses that need no network.

    The bands are two standard errors over images.
    """
    times = []
    by_time = []
    mean = probe.image.mean(0)
    std = probe.image.std(0, correction=0)
    target = velocity_target(probe.image, probe.noise, probe.noise_at)
    for level in range(NUM_LEVELS):
        share = (level + 0.5) / NUM_LEVELS
        t = probe.at(share)
        x_t = interpolate(probe.image, probe.noise, t, probe.noise_at)
        gaussian = gaussian_velocity(x_t, torch.tensor(share).to(x_t), mean, std)
        if probe.noise_at != 1:
            gaussian = -gaussian
        guesses = (probe.velocity(x_t, t).to(x_t), gaussian, torch.zeros_like(target))
        times.append(float(t[0]))
        by_time.append(
            torch.stack([(guess - target).square().mean((1, 2, 3)) for guess in guesses])
        )
    losses = to_numpy(torch.stack(by_time).double())  # (levels, guesses, B)
    network, gaussian_guess, zero = losses.mean(axis=2).T
    x = np.array(times)
    error = 2 * losses[:, 0].std(axis=1) / losses.shape[2] ** 0.5
    curves = [
        Curve(x, network, "network", error),
        Curve(x, gaussian_guess, "each pixel's mean and spread"),
        Curve(x, zero, "no velocity"),
    ]
    title = f"Mean over {len(probe.image)} held-out images"
    y_label = "squared error of v, per pixel value"
    return Figure(
        [Lines(curves, title, TIME_LABELS[probe.noise_at], y_label)],
        title="Loss by time",
        columns=1,
    )
