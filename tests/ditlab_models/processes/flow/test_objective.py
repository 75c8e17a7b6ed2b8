"""The parts of the velocity objective: the direction error and the distributions of time."""

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from ditlab_models.processes.flow import direction_error
from ditlab_models.processes.specs import LogitNormalTime, UniformTime


def test_direction_ignores_length_and_is_2_for_opposites():
    target = torch.randn(16, 1, 8, 8)
    assert direction_error(3 * target, target).item() == pytest.approx(0, abs=1e-4)
    assert direction_error(-target, target).item() == pytest.approx(2, abs=1e-3)
    predicted = torch.randn(16, 1, 8, 8)
    cosine = torch.nn.functional.cosine_similarity(predicted.flatten(1), target.flatten(1))
    assert direction_error(predicted, target).item() == pytest.approx(
        1 - cosine.mean().item(), abs=1e-4
    )


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


def test_eps_keeps_times_from_both_ends(keyed_noise):
    """With eps = 0.05, P(0.4 < t < 0.6) = 0.3487 and P(t > 0.8) = 0.0538."""
    time = LogitNormalTime(eps=0.05)

    def below(t):  # the distribution function
        s = (t - time.eps) / (1 - 2 * time.eps)
        return stats.norm.cdf(math.log(s / (1 - s)))

    assert below(0.6) - below(0.4) == pytest.approx(0.3487, abs=5e-5)
    assert 1 - below(0.8) == pytest.approx(0.0538, abs=5e-5)
    t = time.draw(keyed_noise(), 400_000)
    assert t.min() >= 0.05 and t.max() <= 0.95
    assert ((t > 0.4) & (t < 0.6)).float().mean().item() == pytest.approx(0.3487, abs=0.003)
    assert (t > 0.8).float().mean().item() == pytest.approx(0.0538, abs=0.002)


def test_without_eps_nothing_changes(keyed_noise):
    plain = (0.3 + 0.7 * keyed_noise().normal("time", (1000,))).sigmoid()
    assert torch.equal(LogitNormalTime(mean=0.3, std=0.7).draw(keyed_noise(), 1000), plain)
    moved = LogitNormalTime(mean=0.3, std=0.7, eps=0.1).draw(keyed_noise(), 1000)
    torch.testing.assert_close(moved, 0.1 + 0.8 * plain)
    for eps in (-0.1, 0.5):
        with pytest.raises(ValidationError):
            LogitNormalTime(eps=eps)
