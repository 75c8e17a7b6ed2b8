"""Score entropy: its definition, published closed forms, the least noise."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.processes.score_entropy import expected_zero_score_entropy
from support.models.draws import seeded
from support.models.plain_score_entropy import score_entropy
from support.models.true_scores import log_ratios

GPT2 = 50257
DOUBLE = torch.float64
LEVELS = (1e-3, 0.05, 0.5, 1.0, 20.0)


@pytest.fixture
def tokens():
    """Noisy and clean tokens out of 7, some moved, and a noise level each, (40,)."""
    generator = seeded()
    x0 = torch.randint(7, (40,), generator=generator)
    x = torch.where(
        torch.rand(40, generator=generator) < 0.5, torch.randint(7, (40,), generator=generator), x0
    )
    return x, x0, torch.tensor(LEVELS, dtype=DOUBLE).repeat(8)


@pytest.fixture
def output():
    return torch.randn(40, 7, generator=seeded(1), dtype=DOUBLE)


def test_loss_is_the_sum_over_other_tokens_of_its_definition(tokens, output):
    """1/V sum_{y != x} [e^l - s l + s (ln s - 1)] with s from the true log ratios."""
    x, x0, sigma = tokens
    log_s = log_ratios(x, x0, sigma, 7)
    terms = output.exp() - log_s.exp() * output + log_s.exp() * (log_s - 1)
    expected = terms.scatter(-1, x[:, None], 0.0).sum(-1) / 7
    assert_close(score_entropy(output, x, x0, sigma), expected)


def test_zero_logits_have_the_published_values():
    assert zero_losses(1.0, GPT2) == pytest.approx([0.999594, 5.403052], abs=5e-7)


def zero_losses(sigma, vocabulary):
    """Closed form of the score entropy of log scores 0, of a token that has not moved and of one
    that has.
    """
    r = math.expm1(sigma) / (math.expm1(sigma) + vocabulary)
    unmoved = (vocabulary - 1) / vocabulary * (1 + r * (math.log(r) - 1))
    moved = (vocabulary - 1) / vocabulary + ((-math.log(r) - 1) / r - (vocabulary - 2)) / vocabulary
    return [unmoved, moved]


@pytest.mark.parametrize("vocabulary", [2, 3, 257, GPT2])
@pytest.mark.parametrize("sigma", LEVELS)
def test_zero_logits_closed_forms(vocabulary, sigma):
    at = torch.tensor(sigma, dtype=DOUBLE)
    unmoved, moved = zero_losses(sigma, vocabulary)
    zeros = torch.zeros(2, vocabulary, dtype=DOUBLE)
    found = score_entropy(zeros, torch.tensor([0, 0]), torch.tensor([0, 1]), at)
    assert found.tolist() == pytest.approx([unmoved, moved], rel=1e-9, abs=1e-12)
    moves = -math.expm1(-sigma) * (vocabulary - 1) / vocabulary
    mean = (1 - moves) * unmoved + moves * moved
    assert expected_zero_score_entropy(at, vocabulary).item() == pytest.approx(
        mean, rel=1e-9, abs=1e-12
    )


def test_softmax_reads_the_output_as_one_published_description_does(tokens, output):
    """p - n + c with s = softmax in both p and n, its lines one by one."""
    x, x0, sigma = tokens
    s = output.scatter(-1, x[:, None], 0.0).softmax(-1)
    at_x, at_x0 = (s.gather(-1, each[:, None])[:, 0] for each in (x, x0))
    grown = torch.expm1(sigma)
    r = 1 - 7 / (grown + 7)
    n = s.mean(-1) - at_x / 7
    n = torch.where(x == x0, r * n, at_x0 / grown + n)
    c = torch.where(x == x0, 6 / 7 * r * (r.log() - 1), ((-r.log() - 1) / r - 5) / 7)
    p = s.mean(-1) - at_x / 7
    assert_close(score_entropy(output, x, x0, sigma, "softmax"), p - n + c)


def test_least_noise_is_finite_in_float32():
    sigma = torch.tensor([1e-8, 1e-8], dtype=torch.float32)
    output = torch.zeros(2, GPT2, requires_grad=True)
    losses = score_entropy(output, torch.tensor([0, 0]), torch.tensor([0, 1]), sigma)
    losses.sum().backward()
    assert losses.isfinite().all() and output.grad.isfinite().all()
    assert losses.tolist() == pytest.approx(zero_losses(sigma[0].item(), GPT2), rel=1e-5)
