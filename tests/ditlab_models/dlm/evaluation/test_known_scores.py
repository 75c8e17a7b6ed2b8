"""Closed-form losses of scores that depend on token frequencies alone, against the loss itself."""

import math

import pytest
import torch

from ditlab_models.dlm.evaluation import known_losses
from support.models.plain_score_entropy import score_entropy

V = 7
CHANCES = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.03, 0.015, 0.005], dtype=torch.float64)


def loss_at(probabilities, frequencies, sigma, step=1e-4):
    """The loss per unit of sigma."""
    return known_losses(probabilities, frequencies, (sigma - step, sigma + step))[0] / (2 * step)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 3.0])
def test_they_cost_the_score_entropy_of_another_text(sigma):
    """The mean over all clean and noisy tokens; tokens that are rare for the scores are common in
    that text.
    """
    frequencies = CHANCES.flip(0)
    stays, spread = math.exp(-sigma), (1 - math.exp(-sigma)) / V
    x0, x = (
        each.flatten() for each in torch.meshgrid(torch.arange(V), torch.arange(V), indexing="ij")
    )
    log_q = (stays * CHANCES + spread).log()
    losses = score_entropy(log_q - log_q[x][:, None], x, x0, torch.tensor(sigma).double())
    expected = (frequencies[x0] * (spread + stays * (x == x0)) * losses).sum().item()
    assert loss_at(CHANCES.numpy(), frequencies.numpy(), sigma) == pytest.approx(expected, rel=1e-6)
