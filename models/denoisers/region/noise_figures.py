"""Figures of the region family by noise: the schedule, noised windows with the network's guesses, loss by timestep."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, Heatmap, Lines, Panel
from denoisers.processes.gaussian.schedule import NoiseSchedule
from denoisers.region.network import RegionNetwork
from denoisers.region.prediction import evaluate_network, present_or_none

MASKED = 0.5
STRIP_SHARES = (0.1, 0.4, 0.8)
"""Timesteps of a strip, as shares of the last one."""
MOST_TIMES = 3.0
"""The error of x_t grows by orders of magnitude: its curve ends where it is as many times that of the mean."""
NUM_LEVELS = 20
MAX_WINDOWS = 32


def noise_schedule_figure(schedule: NoiseSchedule) -> Figure:
    """Draw beta_t, the factors of signal and noise, their variances, and the signal-to-noise ratio in decibels."""
    t = np.arange(schedule.num_steps)
    bar = schedule.alphas_cumprod.numpy()
    half = np.flatnonzero(bar < 0.5)
    title = f"As much noise as signal from t = {half[0]} on" if len(half) else "Shares of the variance"
    label = "timestep t"
    panels = [
        Lines([Curve(t, schedule.betas.numpy())], "Share of variance replaced at t", label, "β_t"),
        Lines(
            [
                Curve(t, schedule.sqrt_alphas_cumprod.numpy(), "signal, √ᾱ_t"),
                Curve(t, schedule.sqrt_one_minus_alphas_cumprod.numpy(), "noise, √(1 - ᾱ_t)"),
            ],
            "x_t = √ᾱ_t x_0 + √(1 - ᾱ_t) noise", label, "factor",
        ),
        Lines([Curve(t, bar, "signal, ᾱ_t"), Curve(t, 1 - bar, "noise, 1 - ᾱ_t")], title, label, "share of variance"),
        Lines([Curve(t, 10 * np.log10(bar / (1 - bar)))], "Signal-to-noise ratio", label, "ratio of variances (dB)"),
    ]  # fmt: skip
    return Figure(panels, title=f"Noise by timestep, T = {schedule.num_steps}")


def draw_denoising(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `denoising`: a window whose masked regions hold rising noise, and the network's guess from each."""
    regions, present, mask, noise = _masked(inputs, 1)
    keep = present[0]
    last = schedule.num_steps - 1
    limits = (0.0, max(float(regions.max()), 1e-6))
    upper: list[Panel] = [_window(regions[0, keep], "measured", limits)]
    lower: list[Panel] = [_window(regions[0, keep], "measured", limits)]
    for share in STRIP_SHARES:
        t = torch.full((1,), round(share * last), device=regions.device)
        x_t = torch.where(mask[..., None], schedule.noised(regions, noise, t), regions)
        guess = _guess(inputs, x_t, mask, t, present, regions)
        error = float((guess - regions)[mask].square().mean())
        upper.append(_window(x_t[0, keep], f"t = {int(t)}", limits))
        lower.append(_window(guess[0, keep], f"guess, MSE {error:.3f}", limits))
    title = f"A window with {int(mask.sum())} of {int(keep.sum())} regions noised, and the network's guess of them"
    return Figure([*upper, *lower], title=title, columns=len(STRIP_SHARES) + 1)


def draw_loss_by_time(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `loss_by_time`: the error of masked regions by timestep, beside two guesses that need no network."""
    regions, present, mask, noise = _masked(inputs, MAX_WINDOWS)
    steps = np.unique(np.linspace(0, schedule.num_steps - 1, NUM_LEVELS).round().astype(int))
    mean = regions[present].mean(0)
    rows: list[list[np.ndarray]] = [[], [], []]
    for step in steps.tolist():
        t = torch.full((len(regions),), step, device=regions.device)
        x_t = torch.where(mask[..., None], schedule.noised(regions, noise, t), regions)
        rescaled = x_t / schedule.alpha_bar(step) ** 0.5
        guesses = (_guess(inputs, x_t, mask, t, present, regions), mean.expand_as(regions), rescaled)
        for row, guess in zip(rows, guesses, strict=True):
            row.append(_by_window(guess, regions, mask))
    network, constant, noised = (np.stack(row) for row in rows)  # (levels, windows)
    error = 2 * network.std(axis=1) / network.shape[1] ** 0.5
    worse = noised.mean(axis=1) > MOST_TIMES * constant.mean(axis=1)
    shown = slice(0, int(worse.argmax()) + 1 if worse.any() else None)
    curves = [
        Curve(steps, network.mean(axis=1), "network", error),
        Curve(steps, constant.mean(axis=1), "each feature's mean"),
        Curve(steps[shown], noised.mean(axis=1)[shown], "x_t / √ᾱ_t, as far as shown"),
    ]
    title = f"Masked regions of {len(regions)} held-out windows"
    lines = Lines(curves, title, "timestep t", "squared error of x_0, per entry", log_y=True)
    return Figure([lines], title="Loss by timestep", columns=1)


def _masked(inputs: FigureInputs, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return windows, their regions that are present, a mask of half of these, and noise."""
    regions, present = inputs.batch["regions"][:most].float(), inputs.batch["present"][:most]
    generator, device = inputs.generator, inputs.generator.device
    mask = (torch.rand(present.shape, generator=generator, device=device) < MASKED).to(present.device) & present
    return regions, present, mask, torch.randn(regions.shape, generator=generator, device=device).to(regions)


def _guess(inputs: FigureInputs, x_t: Tensor, mask: Tensor, t: Tensor, present: Tensor, regions: Tensor) -> Tensor:
    network = inputs.network
    assert isinstance(network, RegionNetwork)
    guess = evaluate_network(network, x_t, mask, t, present_or_none(present), None)
    return torch.where(mask[..., None], guess, regions)


def _by_window(guess: Tensor, regions: Tensor, mask: Tensor) -> np.ndarray:
    """Mean squared error of the masked regions of each window, (B,)."""
    squared = (guess - regions).square().mean(-1) * mask
    error: np.ndarray = (squared.sum(1) / mask.sum(1).clamp(min=1)).double().cpu().numpy()
    return error


def _window(values: Tensor, title: str, limits: tuple[float, float]) -> Heatmap:
    shown = values.cpu().numpy().T
    extent = (0.0, float(shown.shape[1]), float(shown.shape[0]), 0.0)
    return Heatmap(shown, title, "region", "feature", extent, limits=limits, unit="share of the maximum")
