"""Denoising diffusion in discrete time (Ho et al. 2020, arXiv:2006.11239): noise schedules,
samplers, the bound.

Samplers are for networks that predict x0, or whose noise has been turned into x0. A learned
variance and the bound's terms are those of Nichol and Dhariwal 2021 (arXiv:2102.09672).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ditlab_models.processes.solvers import StepCallback, ignore
from ditlab_models.processes.specs import LinearBetas, VarianceKind
from ditlab_models.tensors import Constant, per_sample

Denoise = Callable[[Tensor, int], Tensor]
"""(x_t, t) -> the estimate of x0, in x_t's shape."""
Reverse = Callable[[Tensor, int, int], tuple[Tensor, "float | Tensor"]]
"""(x_t, t, s) -> mean and standard deviation of x_s, s < t; s is -1 for x0 itself, and then only
the mean counts.
"""
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
        signal, spread = (_read(table, t, x0) for table in self._shares)
        return signal * x0 + spread * noise

    def x0_of(self, x: Tensor, noise: Tensor, t: int) -> Tensor:
        """Compute the x0 of which x is x_t with this noise."""
        bar = self.alpha_bar(t)
        return (x - (1 - bar) ** 0.5 * noise) / bar**0.5

    def step_terms(self, t: Tensor, like: Tensor) -> StepTerms:
        """Compute the terms of the steps from t to t - 1, t (batch,) int64, in the dtype of `like`
        and to broadcast against it."""
        return StepTerms(*(_read(table, t, like) for table in self._terms))

    @cached_property
    def _shares(self) -> tuple[Constant, Constant]:
        return Constant(lambda: self.sqrt_alphas_cumprod), Constant(
            lambda: self.sqrt_one_minus_alphas_cumprod
        )

    @cached_property
    def _terms(self) -> tuple[Constant, Constant, Constant]:
        def posterior_log_variance() -> Tensor:
            before = torch.cat((self.betas.new_ones(1), self.alphas_cumprod[:-1]))
            log = (self.betas * (1 - before) / (1 - self.alphas_cumprod)).log()
            return torch.cat((log[1:2], log[1:]))  # that of step 0 is 0 and has no logarithm

        return (
            Constant(
                lambda: self.betas / ((1 - self.betas).sqrt() * self.sqrt_one_minus_alphas_cumprod)
            ),
            Constant(posterior_log_variance),
            Constant(lambda: self.betas.log()),
        )


def _read(table: Constant, t: Tensor, like: Tensor) -> Tensor:
    """Look up a table at timesteps t (batch,), in the dtype of `like` and to broadcast against
    it.
    """
    return per_sample(table.on(t.device, torch.float64)[t].to(like.dtype), like)


class StepTerms(NamedTuple):
    """Terms of reverse steps."""

    gain: Tensor
    """Distance of a step's mean from the posterior's, by the distance of the predicted noise from
    the true one.
    """
    posterior: Tensor
    """Logarithm of the variance of q(x_(t-1) | x_t, x0), that of step 1 in place of step 0's."""
    beta: Tensor
    """Logarithm of beta_t."""

    def log_variance(self, kind: VarianceKind, v: Tensor | None = None) -> Tensor:
        """Log-variance of the step: one of the two, or where the network's v, -1 to 1, lies between
        them.
        """
        if kind != "learned_range":
            return self.posterior if kind == "posterior" else self.beta
        assert v is not None
        return interpolate_log_variance(v, self.posterior, self.beta)


def interpolate_log_variance(v: Tensor, posterior: Tensor | float, beta: Tensor | float) -> Tensor:
    """Log-variance between the posterior's, v = -1, and that of beta, v = 1 (arXiv:2102.09672, eq.
    15).
    """
    share = (v + 1) / 2
    return share * beta + (1 - share) * posterior


def bound_terms(
    x0: Tensor, error: Tensor, t: Tensor, terms: StepTerms, log_variance: Tensor
) -> Tensor:
    """Terms of the variational bound of each number of x0 (batch, ...), in nats, at steps t
    (batch,).

    KL(q(x_(t-1) | x_t, x0) || p(x_(t-1) | x_t)) for t above 0, and -log p(x0 | x_1) for t = 0, the
    likelihood of 8-bit pixels in [-1, 1] (Ho et al., eq. 5 and 13). `error` is the true noise minus
    the predicted one.
    """
    distance = terms.gain * error  # of the means: their parts of x0 and x_t cancel out
    gap = terms.posterior - log_variance
    divergence = 0.5 * (gap.exp() - gap - 1 + distance.square() * (-log_variance).exp())
    likelihood = pixel_log_likelihood(x0, x0 + distance, 0.5 * log_variance)
    return torch.where(per_sample(t == 0, x0), -likelihood, divergence)


def pixel_log_likelihood(pixels: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log of the probability that N(mean, std^2) gives 8-bit pixels in [-1, 1], which are 2/255
    apart (eq. 13).
    """
    away = pixels - mean
    scale = (-log_std).exp()
    above = torch.special.ndtr(scale * (away + 1 / 255)).masked_fill(pixels > 0.999, 1.0)
    below = torch.special.ndtr(scale * (away - 1 / 255)).masked_fill(pixels < -0.999, 0.0)
    return (above - below).clamp(min=1e-12).log()


def linear_schedule(spec: LinearBetas) -> NoiseSchedule:
    """Build the schedule whose beta_t rises from `beta_start` to `beta_end`, both included, in
    equal steps.
    """
    betas = torch.linspace(
        spec.beta_start, spec.beta_end, spec.steps, dtype=torch.float64, device="cpu"
    )
    alphas_cumprod = (1 - betas).cumprod(0)
    return NoiseSchedule(betas, alphas_cumprod, alphas_cumprod.sqrt(), (1 - alphas_cumprod).sqrt())


def timesteps(num_steps: int, taken: int) -> list[int]:
    """Choose `taken` timesteps of T = `num_steps` from T - 1 down to 0, as evenly spaced as
    integers can be.
    """
    return [round(t) for t in torch.linspace(num_steps - 1, 0, taken, dtype=torch.float64).tolist()]


def sample_ddpm(
    denoise: Denoise,
    schedule: NoiseSchedule,
    x: Tensor,
    steps: list[int],
    draw: Draw,
    record: StepCallback = ignore,
) -> Tensor:
    """Ancestral sampling: every step is a draw of q(x_s | x_t, x0), whose variance is the
    posterior's (eq. 6 and 7).

    x is x_t at steps[0]; the last step returns the estimate of x0 itself.
    """

    def reverse(x: Tensor, t: int, s: int) -> tuple[Tensor, float]:
        return posterior_mean(schedule, denoise(x, t), x, t, s), posterior_std(schedule, t, s)

    return sample_ancestral(reverse, x, steps, draw, record)


def sample_ancestral(
    reverse: Reverse, x: Tensor, steps: list[int], draw: Draw, record: StepCallback = ignore
) -> Tensor:
    """Draw every step from N(mean, std^2) of `reverse`; x is x_t at steps[0], and the last step
    returns its mean.
    """
    for t, s in pairwise([*steps, -1]):
        mean, std = reverse(x, t, s)
        x = mean if s < 0 else mean + std * draw(x)
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
    """DDIM (Song et al. 2021, arXiv:2010.02502, eq. 12 and 16); eta 0 draws nothing, eta 1 is
    ancestral sampling.
    """
    for t, s in pairwise([*steps, -1]):
        bar_t = schedule.alpha_bar(t)
        bar_s = schedule.alpha_bar(s)
        x0 = denoise(x, t)
        noise = (x - bar_t**0.5 * x0) / (1 - bar_t) ** 0.5
        std = eta * posterior_std(schedule, t, s)
        x = bar_s**0.5 * x0 + max(0.0, 1 - bar_s - std**2) ** 0.5 * noise
        if std:
            x = x + std * draw(x)
        record(x)
    return x


def posterior_mean(schedule: NoiseSchedule, x0: Tensor, x: Tensor, t: int, s: int) -> Tensor:
    """Mean of q(x_s | x_t = x, x0), s < t (eq. 7); x0 for s = -1."""
    bar_t = schedule.alpha_bar(t)
    bar_s = schedule.alpha_bar(s)
    alpha = bar_t / bar_s
    beta = 1 - alpha
    return bar_s**0.5 * beta / (1 - bar_t) * x0 + alpha**0.5 * (1 - bar_s) / (1 - bar_t) * x


def posterior_std(schedule: NoiseSchedule, t: int, s: int) -> float:
    """Standard deviation of q(x_s | x_t, x0), s < t (eq. 7); 0 for s = -1."""
    bar_t = schedule.alpha_bar(t)
    bar_s = schedule.alpha_bar(s)
    return float(((1 - bar_s) / (1 - bar_t) * (1 - bar_t / bar_s)) ** 0.5)
