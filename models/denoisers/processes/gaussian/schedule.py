"""Noise schedules of denoising diffusion in discrete time (Ho et al. 2020, arXiv:2006.11239).

Timesteps t are integers from 0 (least noise) to T - 1. q(x_t | x0) = N(sqrt(alpha_bar_t) x0, (1 - alpha_bar_t) I).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from denoisers.constant import Constant
from denoisers.processes.gaussian.spec import LinearBetas


@dataclass(frozen=True)
class NoiseSchedule:
    """Tables of the noise schedule over t, (T,) float64 each, on the CPU."""

    betas: Tensor
    alphas: Tensor
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
        """Shares of x0 and of the noise in x_t, on each device."""
        return Constant(lambda: self.sqrt_alphas_cumprod), Constant(lambda: self.sqrt_one_minus_alphas_cumprod)


def linear_schedule(spec: LinearBetas) -> NoiseSchedule:
    """Build the schedule whose beta_t rises from `beta_start` to `beta_end`, both included, in equal steps."""
    betas = torch.linspace(spec.beta_start, spec.beta_end, spec.steps, dtype=torch.float64, device="cpu")
    alphas = 1 - betas
    alphas_cumprod = alphas.cumprod(0)
    return NoiseSchedule(betas, alphas, alphas_cumprod, alphas_cumprod.sqrt(), (1 - alphas_cumprod).sqrt())
