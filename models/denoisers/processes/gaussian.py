"""Denoising diffusion in discrete time (Ho et al. 2020, arXiv:2006.11239): noise schedules and samplers.

Samplers are for networks that predict x0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from denoisers.processes.solvers import StepCallback, ignore
from denoisers.processes.specs import LinearBetas
from denoisers.tensors import Constant

Denoise = Callable[[Tensor, int], Tensor]
"""(x_t, t) -> the estimate of x0, in x_t's shape."""
Draw = Callable[[Tensor], Tensor]
"""Standard normal numbers in the shape of a tensor."""


@dataclass(frozen=True)
class NoiseSchedule:
    """Tables of the noise schedule over t, (T,) float64 each, on the CPU."""

    betas: Tensor
    alphas_cumprod: Tensor
    """alpha_bar_t: the share of x0's variance that is left."""
    sqrt_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor

    @property
    def num_steps(self) -> int:
        """Number of timesteps T."""
        return len(self.betas)

    def alpha_bar(self, t: int) -> float:
        """Return alpha_bar_t, 1 for t = -1."""
        return 1.0 if t < 0 else float(self.alphas_cumprod[t])

    def noised(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Compute a draw of q(x_t | x0): x0 and noise (batch, ...), t (batch,) int64 (eq. 4)."""
        shape = (-1, *(1,) * (x0.ndim - 1))
        signal, spread = (table.on(t.device, torch.float64)[t].to(x0.dtype).view(shape) for table in self._shares)
        return signal * x0 + spread * noise

    @cached_property
    def _shares(self) -> tuple[Constant, Constant]:
        return Constant(lambda: self.sqrt_alphas_cumprod), Constant(lambda: self.sqrt_one_minus_alphas_cumprod)


def linear_schedule(spec: LinearBetas) -> NoiseSchedule:
    """Build the schedule whose beta_t rises from `beta_start` to `beta_end`, both included, in equal steps."""
    betas = torch.linspace(spec.beta_start, spec.beta_end, spec.steps, dtype=torch.float64, device="cpu")
    alphas_cumprod = (1 - betas).cumprod(0)
    return NoiseSchedule(betas, alphas_cumprod, alphas_cumprod.sqrt(), (1 - alphas_cumprod).sqrt())


def timesteps(num_steps: int, taken: int) -> list[int]:
    """Choose `taken` timesteps of T = `num_steps` from T - 1 down to 0, as evenly spaced as integers can be."""
    return [round(t) for t in torch.linspace(num_steps - 1, 0, taken, dtype=torch.float64).tolist()]


def sample_ddpm(
    denoise: Denoise, schedule: NoiseSchedule, x: Tensor, steps: list[int], draw: Draw, record: StepCallback = ignore
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
    record: StepCallback = ignore,
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
