"""Samplers of denoising diffusion in discrete time (Ho et al. 2020, arXiv:2006.11239), for networks that predict x0.

Timesteps t are integers from 0 (least noise) to T - 1. q(x_t | x0) = N(sqrt(alpha_bar_t) x0, (1 - alpha_bar_t) I).
Samplers go down a list of timesteps, which may leave some out; t = -1 stands for x0 itself, alpha_bar_{-1} = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from denoisers.processes.gaussian.schedule import NoiseSchedule

Denoise = Callable[[Tensor, int], Tensor]
"""(x_t, t) -> the estimate of x0, in x_t's shape."""
Draw = Callable[[Tensor], Tensor]
"""Standard normal numbers in the shape of a tensor."""
StepCallback = Callable[[Tensor], None]
"""Called with the state after every step."""


def timesteps(num_steps: int, taken: int) -> list[int]:
    """Choose `taken` timesteps of T = `num_steps` from T - 1 down to 0, as evenly spaced as integers can be."""
    return [round(t) for t in torch.linspace(num_steps - 1, 0, taken, dtype=torch.float64).tolist()]


def _ignore(x: Tensor) -> None:
    """Record nothing."""


def sample_ddpm(
    denoise: Denoise, schedule: NoiseSchedule, x: Tensor, steps: list[int], draw: Draw, record: StepCallback = _ignore
) -> Tensor:
    """Ancestral sampling: every step is a draw of q(x_s | x_t, x0), whose variance is the posterior's (eq. 6 and 7).

    x is x_t at steps[0]; the last step returns the estimate of x0 itself.
    """
    for t, s in pairwise([*steps, -1]):
        bar_t, bar_s = schedule.alpha_bar(t), schedule.alpha_bar(s)
        alpha = bar_t / bar_s
        beta = 1 - alpha
        x0 = denoise(x, t)
        mean = bar_s**0.5 * beta / (1 - bar_t) * x0 + alpha**0.5 * (1 - bar_s) / (1 - bar_t) * x
        x = mean if s < 0 else mean + posterior_std(schedule, t, s) * draw(x)
        record(x)
    return x


def sample_ddim(
    denoise: Denoise,
    schedule: NoiseSchedule,
    x: Tensor,
    steps: list[int],
    draw: Draw,
    eta: float = 0.0,
    record: StepCallback = _ignore,
) -> Tensor:
    """DDIM (Song et al. 2021, arXiv:2010.02502, eq. 12 and 16); eta 0 draws nothing, eta 1 is ancestral sampling."""
    for t, s in pairwise([*steps, -1]):
        bar_t, bar_s = schedule.alpha_bar(t), schedule.alpha_bar(s)
        x0 = denoise(x, t)
        noise = (x - bar_t**0.5 * x0) / (1 - bar_t) ** 0.5
        std = eta * posterior_std(schedule, t, s)
        x = bar_s**0.5 * x0 + max(0.0, 1 - bar_s - std**2) ** 0.5 * noise
        if std:
            x = x + std * draw(x)
        record(x)
    return x


def posterior_std(schedule: NoiseSchedule, t: int, s: int) -> float:
    """Standard deviation of q(x_s | x_t, x0), s < t (eq. 7); 0 for s = -1."""
    bar_t, bar_s = schedule.alpha_bar(t), schedule.alpha_bar(s)
    return float(((1 - bar_s) / (1 - bar_t) * (1 - bar_t / bar_s)) ** 0.5)


def gaussian_denoiser(schedule: NoiseSchedule, mean: float, std: float) -> Denoise:
    """Return the exact E[x0 | x_t] for data N(mean, std^2): the output of a perfect network."""

    def denoise(x: Tensor, t: int) -> Tensor:
        bar = schedule.alpha_bar(t)
        gain = std**2 * bar**0.5 / (std**2 * bar + 1 - bar)
        return mean + gain * (x - bar**0.5 * mean)

    return denoise
