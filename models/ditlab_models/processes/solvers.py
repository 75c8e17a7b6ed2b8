"""Solvers of dx/dt = velocity(x, t) on a given grid.

Explicit Runge-Kutta methods (Hairer, Norsett, Wanner, chapter II.1), and DPM-Solver++ on straight
lines (Lu et al. 2022, arXiv:2211.01095): x_t = t x + (1 - t) eps, noise at t = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ditlab_models.processes.flow import Velocity

StepCallback = Callable[[Tensor], None]
"""Called with the state after every step."""


def ignore(x: Tensor) -> None:
    """Record nothing."""


def euler(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """Euler's method, order 1: one evaluation a step."""
    for t, t_next in pairwise(times.unbind()):
        x = x + (t_next - t) * velocity(x, t)
        record(x)
    return x


def heun(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """Heun's method (trapezoidal), order 2: two evaluations in every step, the last one
    included.
    """
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        k2 = velocity(x + h * k1, t_next)
        x = x + h / 2 * (k1 + k2)
        record(x)
    return x


def heun_then_euler(
    velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore
) -> Tensor:
    """Heun's method with an Euler step at the end (Karras et al. 2022, arXiv:2206.00364, algorithm
    1), order 2.
    """
    x = heun(velocity, x, times[:-1], record)
    return euler(velocity, x, times[-2:], record)


def midpoint(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """The midpoint method, order 2: two evaluations a step, none at the grid's last time."""
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        x = x + h * velocity(x + h / 2 * k1, t + h / 2)
        record(x)
    return x


def rk4(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """The classical Runge-Kutta method, order 4: four evaluations a step."""
    for t, t_next in pairwise(times.unbind()):
        h = t_next - t
        k1 = velocity(x, t)
        k2 = velocity(x + h / 2 * k1, t + h / 2)
        k3 = velocity(x + h / 2 * k2, t + h / 2)
        k4 = velocity(x + h * k3, t_next)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        record(x)
    return x


SOLVERS: dict[str, Callable[..., Tensor]] = {
    "euler": euler,
    "heun": heun,
    "midpoint": midpoint,
    "rk4": rk4,
}


def dpmpp_2m(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """DPM-Solver++(2M) (algorithm 2), order 2: one evaluation a step; D is extrapolated from the
    last two.
    """
    before: Tensor | None = None
    h_before = times.new_zeros(())
    for t, t_next in pairwise(times.unbind()):
        h = torch.logit(t_next) - torch.logit(t)
        data = prediction = x + (1 - t) * velocity(x, t)
        if before is not None:
            data = prediction + h / (2 * h_before) * (prediction - before)
        x = _step(x, t, t_next, data)
        before = prediction
        h_before = h
        record(x)
    return x


def dpmpp_2s(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """DPM-Solver++(2S) (algorithm 1 with r = 1/2), order 2: two evaluations a step, the second
    midway in lambda.
    """
    for t, t_next in pairwise(times.unbind()):
        s = ((torch.logit(t) + torch.logit(t_next)) / 2).sigmoid()
        u = _step(x, t, s, x + (1 - t) * velocity(x, t))
        x = _step(x, t, t_next, u + (1 - s) * velocity(u, s))
        record(x)
    return x


def _step(x: Tensor, t: Tensor, t_next: Tensor, data: Tensor) -> Tensor:
    """Step from t to t' with the data prediction held fixed: DDIM."""
    h = torch.logit(t_next) - torch.logit(t)
    return (1 - t_next) / (1 - t) * x - t_next * torch.expm1(-h) * data
