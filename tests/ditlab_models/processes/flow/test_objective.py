"""The parts of the velocity objective: the direction error and the distributions of time."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.processes.flow import direction_error
from ditlab_models.processes.specs import LogitNormalTime, UniformTime
from support.models.draws import KeyedNoise


def test_direction_is_one_minus_the_cosine():
    predicted, target = torch.randn(2, 16, 1, 8, 8)
    cosine = torch.nn.functional.cosine_similarity(predicted.flatten(1), target.flatten(1))
    assert_close(direction_error(predicted, target), 1 - cosine.mean(), rtol=0, atol=1e-4)


def test_direction_has_a_bounded_gradient_where_the_network_predicts_zero():
    predicted = torch.zeros(4, 1, 8, 8, requires_grad=True)
    error = direction_error(predicted, torch.randn(4, 1, 8, 8))
    error.backward()
    assert error.item() == 1
    assert 0 < predicted.grad.abs().max() < 10


def test_times_follow_their_distribution():
    uniform = UniformTime().draw(KeyedNoise(), 100_000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.01)
    logit = torch.logit(LogitNormalTime(mean=-0.8, std=1.4).draw(KeyedNoise(), 100_000).double())
    assert logit.mean().item() == pytest.approx(-0.8, abs=0.02)
    assert logit.std().item() == pytest.approx(1.4, abs=0.02)


def test_without_eps_nothing_changes():
    plain = (0.3 + 0.7 * KeyedNoise().normal("time", (1000,))).sigmoid()
    assert torch.equal(LogitNormalTime(mean=0.3, std=0.7).draw(KeyedNoise(), 1000), plain)
    moved = LogitNormalTime(mean=0.3, std=0.7, eps=0.1).draw(KeyedNoise(), 1000)
    assert_close(moved, 0.1 + 0.8 * plain)
