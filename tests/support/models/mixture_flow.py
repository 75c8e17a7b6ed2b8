"""The flow between noise and two equal Gaussians at -1 and 1: nonlinear in x, as a trained
network's is, and known.
"""

import torch

from ditlab_models.processes.flow import gaussian_velocity

STD = 0.5


def mixture_velocity(x, t):
    """The exact velocity, data at t = 0 and noise at t = 1."""
    time = float(t)
    variance = (1 - time) ** 2 * STD**2 + time**2
    # One Gaussian's velocity is affine in its mean, so the mixture's is that of the mean that is
    # expected at x.
    return gaussian_velocity(x, time, torch.tanh((1 - time) / variance * x), STD)


def velocity_to_mixture(x, t):
    """The exact velocity, noise at t = 0 and data at t = 1."""
    return -mixture_velocity(x, 1 - t)


def carried(x, start, end):
    """Points x at time `start` where the flow takes them by time `end`, noise at t = 1; float64, to
    1e-12.

    A flow on a line keeps the share of its law that lies below a point.
    """
    share = _share_below(x, start)
    low, high = torch.full_like(x, -16), torch.full_like(x, 16)
    for _ in range(60):
        middle = (low + high) / 2
        above = _share_below(middle, end) > share
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low


def _share_below(x, t):
    mean, std = 1 - t, ((1 - t) ** 2 * STD**2 + t**2) ** 0.5
    return (torch.special.ndtr((x + mean) / std) + torch.special.ndtr((x - mean) / std)) / 2
