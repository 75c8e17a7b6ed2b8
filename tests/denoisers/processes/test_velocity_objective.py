"""The parts of the velocity objective: the direction error and the distributions of time."""

import pytest
import torch

from denoisers.processes.flow_spec import LogitNormalTime, UniformTime
from denoisers.processes.velocity_objective import direction_error


def test_direction_ignores_length_and_tells_opposites():
    target = torch.randn(16, 1, 8, 8)
    assert direction_error(3 * target, target).item() == pytest.approx(0, abs=1e-4)
    assert direction_error(-target, target).item() == pytest.approx(2, abs=1e-3)
    predicted = torch.randn(16, 1, 8, 8)
    cosine = torch.nn.functional.cosine_similarity(predicted.flatten(1), target.flatten(1))
    assert direction_error(predicted, target).item() == pytest.approx(1 - cosine.mean().item(), abs=1e-4)


def test_direction_has_a_bounded_gradient_where_the_network_predicts_zero():
    predicted = torch.zeros(4, 1, 8, 8, requires_grad=True)
    error = direction_error(predicted, torch.randn(4, 1, 8, 8))
    error.backward()
    assert error.item() == 1
    assert 0 < predicted.grad.abs().max() < 10


def test_times_follow_their_distribution(keyed_noise):
    uniform = UniformTime().draw(keyed_noise(), 100_000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.01)
    logit = torch.logit(LogitNormalTime(mean=-0.8, std=1.4).draw(keyed_noise(), 100_000).double())
    assert logit.mean().item() == pytest.approx(-0.8, abs=0.02)
    assert logit.std().item() == pytest.approx(1.4, abs=0.02)
