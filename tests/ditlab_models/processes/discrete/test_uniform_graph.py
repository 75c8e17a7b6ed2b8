"""The uniform discrete process: transitions sum to 1, keep their digits, compose, and are inverted
by true scores.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.processes.specs import TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import (
    corrupt,
    kl_from_uniform,
    log_ratio,
    move_probability,
    posterior,
    ratio,
    reverse_rate,
    transition,
)
from support.models.draws import seeded

GPT2 = 50257
DOUBLE = torch.float64


def sigmas(*values):
    return torch.tensor(values, dtype=DOUBLE)


def marginal(clean, sigma):
    """q_sigma of one token whose clean distribution is given, (V,)."""
    return (-sigma).exp() * clean + move_probability(sigma) / len(clean)


@pytest.fixture
def clean():
    """A distribution over 7 tokens."""
    return torch.tensor([0.4, 0.3, 0.15, 0.1, 0.03, 0.015, 0.005], dtype=DOUBLE)


@pytest.mark.parametrize("kind", ["geometric", "loglinear"])
def test_schedule_its_slope_and_its_inverse(kind):
    """The noise is geometric, or the share of moved tokens linear."""
    schedule = TokenNoiseSchedule(kind=kind, sigma_min=1e-4, sigma_max=20.0)
    t = torch.linspace(0, 1, 5, dtype=DOUBLE)
    moved = move_probability(sigmas(1e-4, 20))
    shares = (
        torch.lerp(*moved, t) if kind == "loglinear" else move_probability(1e-4 ** (1 - t) * 20**t)
    )
    assert_close(move_probability(schedule.sigma(t)), shares)
    inner, h = t[1:-1], 1e-6
    slope = (schedule.sigma(inner + h) - schedule.sigma(inner - h)) / (2 * h)
    assert_close(schedule.rate(inner), slope, rtol=1e-6, atol=0)
    quieter = TokenNoiseSchedule(kind=kind, sigma_min=1e-3, sigma_max=7.0)
    assert_close(quieter.time(quieter.sigma(t)), t)


@pytest.mark.parametrize("sigma", [1e-8, 1e-3, 0.49, 0.51, 1.0, 20.0])
def test_ratio_keeps_its_digits_in_float32(sigma):
    grown = math.expm1(sigma)
    at = torch.tensor(sigma, dtype=torch.float32)
    assert ratio(at, GPT2).item() == pytest.approx(grown / (grown + GPT2), rel=2e-6)
    assert log_ratio(at, GPT2).item() == pytest.approx(-math.log1p(GPT2 / grown), rel=2e-6)


def test_transition_is_the_exponential_of_its_rates_and_composes():
    rates = torch.full((7, 7), 1 / 7, dtype=DOUBLE) - torch.eye(7, dtype=DOUBLE)
    every = torch.arange(7)
    for sigma in (0.01, 0.7, 5.0):
        assert_close(transition(every, sigmas(sigma), 7), torch.matrix_exp(sigma * rates))
    two = transition(every, sigmas(0.3), 7) @ transition(every, sigmas(0.9), 7)
    assert_close(two, transition(every, sigmas(1.2), 7))


def test_corrupt_draws_from_transition_with_each_samples_own_noise():
    num, vocabulary = 200_000, 7
    x0 = torch.full((2, num), 3)
    sigma = torch.tensor([[0.2], [2.0]])
    generator = seeded()
    move, jump = torch.rand(2, 2, num, generator=generator)
    x = corrupt(x0, sigma, move, jump, vocabulary)
    for row in range(2):
        found = x[row].bincount(minlength=vocabulary) / num
        expected = transition(torch.tensor(3), sigma[row, 0], vocabulary)
        assert_close(found, expected, rtol=0, atol=4 * 0.5 / num**0.5)


def test_corrupt_stays_within_the_vocabulary():
    most = torch.full((1, 1), 1 - 2.0**-24)
    assert (
        corrupt(torch.zeros(1, 1).long(), torch.ones(1, 1), torch.zeros(1, 1), most, GPT2).item()
        == GPT2 - 1
    )


def test_posterior_with_true_scores_is_bayes(clean):
    x = torch.arange(7)
    late, step = sigmas(1.5)[0], sigmas(0.4)[0]
    now, before = marginal(clean, late), marginal(clean, late - step)
    scores = (now[None] / now[:, None]).log()
    forward = transition(x, step, 7)  # from y to x, symmetric
    assert_close(posterior(scores, x, step), before[None] * forward / now[:, None])
    # all the way: the clean distribution, weighted by how it gets to x
    assert_close(posterior(scores, x, late), clean[None] * transition(x, late, 7) / now[:, None])


def test_posterior_keeps_its_digits_over_a_large_step(clean):
    """At sigma = 15 all scores are within 1e-6 of 1; their differences from 1 are all the
    information there is.
    """
    x, step = torch.tensor([0, 3, 6]), sigmas(13.0)[0]
    excess = (-sigmas(15.0)[0]).exp() * (7 * clean - 1)
    scores = torch.log1p(excess)[None] - torch.log1p(excess[x])[:, None]
    exact, single = (posterior(each, x, step.to(each.dtype)) for each in (scores, scores.float()))
    assert_close(single.double(), exact, rtol=1e-4, atol=0)


def test_posterior_of_false_scores_is_still_a_distribution():
    scores = 5 * torch.randn(40, 7, generator=seeded(), dtype=DOUBLE)
    x = torch.arange(40) % 7
    probabilities = posterior(scores.scatter(-1, x[:, None], 0.0), x, sigmas(2.0))
    assert (probabilities >= 0).all() and (probabilities == 0).any()
    assert_close(probabilities.sum(-1), torch.ones(40, dtype=DOUBLE))


def test_reverse_rate_is_what_posterior_does_in_no_time(clean):
    x, sigma = torch.arange(7), sigmas(0.8)[0]
    now = marginal(clean, sigma)
    scores = (now[None] / now[:, None]).log()
    rate = reverse_rate(scores, x)
    assert_close(rate.sum(-1), torch.zeros(7, dtype=DOUBLE), rtol=0, atol=1e-14)
    step = sigmas(1e-7)[0]
    moved = (posterior(scores, x, step) - torch.eye(7, dtype=DOUBLE)) / step
    assert_close(rate, moved, rtol=1e-5, atol=1e-6)
    # and carries the marginal back, as sigma falls
    slope = (marginal(clean, sigma - step) - now) / step
    assert_close(now @ rate, slope, rtol=1e-5, atol=1e-6)


def test_kl_of_the_prior():
    assert kl_from_uniform(1.0, GPT2) == pytest.approx(3.3246, abs=5e-5)
    assert kl_from_uniform(1e-3, GPT2) == pytest.approx(10.80618, abs=5e-6)
    assert kl_from_uniform(1e-4, GPT2) == pytest.approx(10.82280, abs=5e-6)
    assert kl_from_uniform(20.0, GPT2) == pytest.approx(0, abs=1e-9)
    assert kl_from_uniform(1e-12, GPT2) == pytest.approx(math.log(GPT2), abs=1e-9)
    for sigma in (0.01, 1.0, 4.0):
        row = transition(torch.tensor(0), sigmas(sigma)[0], 7)
        assert kl_from_uniform(sigma, 7) == pytest.approx((row * (7 * row).log()).sum().item())
