"""Laws with known optima: the closed forms against sums over all that may have been, and excess
loss against losses.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ditlab.inputs.noise import fixed_noise
from ditlab_models.families import families
from ditlab_models.processes.analytic_targets import (
    GaussianMixture,
    MarkovChain,
    score_entropy_excess,
)
from support.models.draws import Answering, seeded
from support.models.plain_score_entropy import score_entropy
from support.models.true_scores import every_sequence, scores_of

CPU = torch.device("cpu")
MIXTURE = GaussianMixture(np.array([[-0.4, 0.1], [0.3, 0.2], [0.35, -0.5]]), 0.1)
CHAIN = MarkovChain(
    np.array([0.25, 0.25, 0.5]), np.array([[0.6, 0.2, 0.2], [0.2, 0.4, 0.4], [0.1, 0.2, 0.7]])
)


def draw_points(num, generator):
    means = torch.from_numpy(MIXTURE.means)[torch.randint(3, (num,), generator=generator)]
    return means + MIXTURE.std * torch.randn(means.shape, generator=generator, dtype=torch.float64)


def test_expectations_of_a_mixture_are_integrals_over_the_data():
    """Expectation by quadrature over a grid of clean points."""
    signal, spread, x = 0.6, 0.3, torch.tensor([0.05, 0.1], dtype=torch.float64)
    axis = torch.linspace(-1.2, 1.2, 601, dtype=torch.float64)
    clean = torch.cartesian_prod(axis, axis)
    away = clean[:, None] - torch.from_numpy(MIXTURE.means)
    prior = (away.square().sum(-1) / (-2 * MIXTURE.std**2)).exp().sum(1)
    weight = prior * ((x - signal * clean).square().sum(1) / (-2 * spread**2)).exp()
    expected = (weight[:, None] * clean).sum(0) / weight.sum()
    data, noise = MIXTURE.expectations(x, torch.tensor([signal]), torch.tensor([spread]))
    assert_close(data, expected, rtol=1e-6, atol=1e-6)
    assert_close(signal * data + spread * noise, x)


def law_of_sequences(length):
    """The chain's law, (V, ..., V)."""
    tokens = every_sequence(3, length)
    chances = torch.from_numpy(CHAIN.initial)[tokens[:, 0]]
    for before, token in zip(tokens.T[:-1], tokens.T[1:], strict=True):
        chances = chances * torch.from_numpy(CHAIN.transition)[before, token]
    return chances.view(*[3] * length)


@pytest.mark.parametrize("sigma", [0.01, 0.7, 5.0])
def test_scores_of_a_chain_are_sums_over_all_clean_sequences(sigma):
    x = every_sequence(3, 4)
    found = CHAIN.log_scores(x, torch.full((len(x), 1), sigma))
    assert_close(found, scores_of(law_of_sequences(4), x, sigma), rtol=1e-6, atol=1e-6)


def test_regret_of_scores_is_the_expected_score_entropy_above_the_true_scores():
    """Sum over clean and noisy sequences, of scores that are wrong by chance."""
    sigma, law = 0.5, law_of_sequences(3).flatten()
    sequences = every_sequence(3, 3)
    x0, x = (sequences[each] for each in torch.cartesian_prod(torch.arange(27), torch.arange(27)).T)
    level = torch.full((len(x), 1), sigma, dtype=torch.float64)
    moved = 1 - torch.exp(-level)
    joint = torch.where(x == x0, 1 - moved * 2 / 3, moved / 3).prod(1) * law.repeat_interleave(27)
    best = CHAIN.log_scores(x, level)
    wrong = 0.3 * torch.randn(27, 3, 3, dtype=torch.float64, generator=seeded())
    output = (best + wrong.repeat(27, 1, 1)).scatter(-1, x[..., None], 0.0)
    losses = [(score_entropy(each, x, x0, level).sum(1) * joint).sum() for each in (output, best)]
    excess = (score_entropy_excess(output, best).sum(1) * joint).sum()
    assert_close(losses[0] - losses[1], excess, rtol=1e-9, atol=1e-12)
    assert excess > 0.01


def perturbed(by):
    """The optimal velocity of the mixture, `by` too large in each coordinate."""

    def velocity(x, t):
        time = t.double()[:, None]
        data, noise = MIXTURE.expectations(x.flatten(1), 1 - time, time)
        return (noise - data).view_as(x) + by

    return Answering(velocity)


def test_regret_of_a_velocity_is_its_loss_above_the_optimum_on_the_same_draws():
    dit = families()["dit"]
    model = dit.model(image_size=1, patch_size=1, channels=2)
    objective = dit.build_objective(dit.objective(), model)
    points = draw_points(20_000, seeded()).float()
    batch = {"image": points.view(-1, 2, 1, 1)}
    assert objective.knows_optimum(MIXTURE) and not objective.knows_optimum(CHAIN)
    losses = [
        objective.metrics(perturbed(by), batch, fixed_noise(0, CPU))["velocity"]
        for by in (0.3, 0.0)
    ]
    regrets = [
        objective.excess_loss(perturbed(by), MIXTURE, batch, fixed_noise(0, CPU))
        for by in (0.3, 0.0)
    ]
    assert_close(regrets[0], torch.full_like(regrets[0], 0.09), rtol=1e-4, atol=1e-6)
    assert regrets[1].max() < 1e-9
    difference = (losses[0] - losses[1]).double()
    assert difference.mean() == pytest.approx(0.09, abs=4 * float(difference.std()) / 20_000**0.5)
