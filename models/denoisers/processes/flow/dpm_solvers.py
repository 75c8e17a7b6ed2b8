"""DPM-Solver++ on straight lines (Lu et al. 2022, arXiv:2211.01095): x_t = t x + (1 - t) eps, noise at t = 0.

Solvers with the signature of `denoisers.processes.flow.solvers`, for grids strictly between 0 and 1. In the paper's
symbols alpha_t = t and sigma_t = 1 - t, lambda_t = log(t / (1 - t)) is half the log-SNR, and a step from t to t' with
the data prediction D held fixed is exact:

    x' = (sigma' / sigma) x - alpha' expm1(-h) D,    h = lambda' - lambda
"""

from itertools import pairwise

import torch
from torch import Tensor

from denoisers.processes.flow.linear_path import Velocity
from denoisers.processes.flow.solvers import StepCallback, ignore


def dpmpp_2m(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """DPM-Solver++(2M) (algorithm 2), order 2: one evaluation a step; D is extrapolated from the last two."""
    before: Tensor | None = None
    h_before = times.new_zeros(())
    for t, t_next in pairwise(times.unbind()):
        h = torch.logit(t_next) - torch.logit(t)
        data = prediction = x + (1 - t) * velocity(x, t)
        if before is not None:
            data = prediction + h / (2 * h_before) * (prediction - before)
        x = _step(x, t, t_next, data)
        before, h_before = prediction, h
        record(x)
    return x


def dpmpp_2s(velocity: Velocity, x: Tensor, times: Tensor, record: StepCallback = ignore) -> Tensor:
    """DPM-Solver++(2S) (algorithm 1 with r = 1/2), order 2: two evaluations a step, the second midway in lambda."""
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
