"""Flow matching along straight lines (Lipman et al. 2023, arXiv:2210.02747; Liu et al. 2023, arXiv:2209.03003).

Data x0, noise x1 ~ N(0, I), x_t = (1 - t) x0 + t x1, velocity v = dx_t/dt = x1 - x0. Time runs from data (t = 0) to
noise (t = 1); both directions are found in the literature, so the noise's end is a parameter here.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""(x, t) -> dx/dt in x's shape; t is a scalar tensor or broadcasts against x."""
NoiseAt = Literal[0, 1]


def interpolate(data: Tensor, noise: Tensor, t: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """Compute x_t, the point between data and noise at time t (batch,); data and noise (batch, ...).

    In the better of the dtypes of data and noise.
    """
    dtype = torch.promote_types(data.dtype, noise.dtype)
    data, noise, t = data.to(dtype), noise.to(dtype), t.to(dtype).view(-1, *(1,) * (data.ndim - 1))
    return torch.lerp(data, noise, t) if noise_at == 1 else torch.lerp(noise, data, t)


def repeat_time(t: Tensor, x: Tensor) -> Tensor:
    """Repeat a scalar time of the host for each sample of x (B, ...): (B,), in x's dtype, without a copy to a GPU."""
    return x.new_full((len(x),), float(t))


def velocity_target(data: Tensor, noise: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """Compute dx_t/dt, constant along the line."""
    return noise - data if noise_at == 1 else data - noise


def endpoints(x_t: Tensor, velocity: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Compute x at t = 0 and x at t = 1 of the straight line through x_t with this velocity; t (batch,)."""
    t = t.view(-1, *(1,) * (x_t.ndim - 1))
    return x_t - t * velocity, x_t + (1 - t) * velocity


def reverse_time(velocity: Velocity) -> Velocity:
    """Reverse a flow's time: w(x, t) = -v(x, 1 - t)."""
    return lambda x, t: -velocity(x, 1 - t)


def gaussian_velocity(x: Tensor, t: Tensor, mean: float | Tensor, std: float | Tensor) -> Tensor:
    """The exact velocity E[x1 - x0 | x_t = x] for data N(mean, std^2), noise at t = 1.

    Its flow carries mean + std x1 at t = 0 to x1 at t = 1. With std = 0 it is `point_velocity`.
    """
    variance = (1 - t) ** 2 * std**2 + t**2
    return -mean + (t - (1 - t) * std**2) / variance * (x - (1 - t) * mean)


def point_velocity(x: Tensor, t: Tensor, point: Tensor, noise_at: NoiseAt = 1) -> Tensor:
    """The exact velocity for data at one point, away from the data's end of time: (x - point) / t, noise at t = 1.

    It is also the velocity of a network that predicts the data as `point`.
    """
    return (x - point) / t if noise_at == 1 else (point - x) / (1 - t)
