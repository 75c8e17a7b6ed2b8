"""Where the loss sits: score entropy by noise."""

from __future__ import annotations

import torch

from denoisers.dlm.noising import TokenNoise
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Curve, Figure, Lines
from denoisers.processes.discrete.score_entropy import expected_zero_score_entropy

NUM_LEVELS = 16
ROUNDS = 2
"""Draws of each sequence at each level."""


def draw_loss_by_noise(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """`loss_by_noise`: the batch's loss times d sigma/dt by t, and as it is by sigma, with that of all log scores 0.

    A curve's area is, in both panels, the integral in the bound, in nats a token. Bands are two standard errors over
    sequences. Each level is the middle of an equal part of t.
    """
    x0 = inputs.batch["tokens"]
    t = (torch.arange(NUM_LEVELS, dtype=torch.float32, device=x0.device) + 0.5) / NUM_LEVELS
    of_level = []  # of each level, losses of sequences
    for time in t:
        level = noise.at_time(time.expand(noise.time_shape(x0)))
        rounds = []
        for _ in range(ROUNDS):
            move, jump = torch.rand(2, *x0.shape, generator=inputs.generator, device=x0.device)
            rounds.append(noise.losses(inputs.network, x0, level, move, jump).per_token.mean(1))
        of_level.append(torch.cat(rounds).double())
    losses = torch.stack(of_level)  # (levels, sequences)
    sigma, rate = noise.schedule.sigma(t).double(), noise.schedule.rate(t).double()
    mean, error = losses.mean(1), 2 * losses.std(1) / losses.shape[1] ** 0.5
    flat = expected_zero_score_entropy(sigma, noise.vocabulary)
    panels = []
    for times, x, title, x_label, y_label in (
        (rate, t, "Loss times d sigma/dt, by time", "t", "nats a token per unit of t"),
        (torch.ones_like(rate), sigma, "Loss, by noise", "sigma", "nats a token per unit of sigma"),
    ):
        place, y, band, zero = (each.cpu().numpy() for each in (x, times * mean, times * error, times * flat))
        curves = [Curve(place, y, "network", band), Curve(place, zero, "all log scores 0")]
        panels.append(Lines(curves, title, x_label, y_label))
    area, zero_area = (float((rate * each).mean()) for each in (mean, flat))
    title = f"Where the loss sits (areas in nats a token: network {area:.3f}, all log scores 0 {zero_area:.3f})"
    return Figure(panels, title=title)
