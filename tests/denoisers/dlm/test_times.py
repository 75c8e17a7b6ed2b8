"""Densities of training times: they change a loss's variance, not what it estimates."""

import math

import pytest
import torch

from denoisers.dlm.family import FAMILY
from denoisers.dlm.spec import BellTokenTime, DLMObjectiveSpec, DLMSpec, UniformTokenTime
from denoisers.processes.score_entropy import TokenLosses, expected_zero_score_entropy, score_entropy
from denoisers.processes.specs import TokenNoiseSchedule
from denoisers.processes.uniform_graph import sigma_schedule

V, NOISE = 11, TokenNoiseSchedule(sigma_min=0.05, sigma_max=2.0)
BELLS = [{}, {"mean": 1.5, "std": 0.4}, {"mean": -1.0, "std": 3.0, "uniform_share": 0.5}]


def zero_scores(x, sigma, targets, documents=None):
    losses = score_entropy(torch.zeros(*x.shape, V), x, targets.x0, targets.sigma, targets.score)
    return TokenLosses((losses * targets.weight).sum(), losses.detach())


def objective(time):
    model = DLMSpec(length=4, vocabulary=V, depth=1, num_heads=2, width=16, condition_width=8, time_width=8)
    return FAMILY.build_objective(DLMObjectiveSpec(noise=NOISE, time=time, time_min=0.0), model)


@pytest.mark.parametrize("fields", BELLS, ids=str)
def test_the_density_is_the_histogram_and_integrates_to_one(fields, keyed_noise):
    time = BellTokenTime(**fields)
    s = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    density = time.density(s)
    assert density.mean().item() == pytest.approx(1, abs=1e-3)
    drawn = time.draw(keyed_noise(), (200_000, 1))
    counts = torch.histc(drawn.s, 10, 0, 1).double() / 200_000
    assert torch.allclose(counts, density.view(10, -1).mean(1) / 10, atol=5 * math.sqrt(0.25 / 200_000))
    assert drawn.weight.max() <= 1 / time.uniform_share + 1e-4
    assert drawn.weight.double().mean().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("fields", BELLS, ids=str)
def test_the_loss_is_the_integral_under_any_density(fields, keyed_noise):
    """At log scores 0, whose loss by noise has a closed form; and without the division it is the density's mean."""
    num = 40_000
    x0 = torch.randint(V, (num, 4), generator=torch.Generator().manual_seed(0))
    schedule = sigma_schedule(NOISE)
    t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    by_time = expected_zero_score_entropy(schedule.sigma(t), V) * schedule.rate(t)
    found = objective(BellTokenTime(**fields)).loss(zero_scores, {"tokens": x0}, keyed_noise())
    assert found["score_entropy"].item() == pytest.approx(by_time.mean().item(), rel=0.03)
    assert found["unweighted"].item() == pytest.approx(
        expected_zero_score_entropy(schedule.sigma(t), V).mean().item(), rel=0.03
    )
    drawn = BellTokenTime(**fields, weighting="drawn")
    found = objective(drawn).loss(zero_scores, {"tokens": x0}, keyed_noise())["score_entropy"]
    assert found.item() == pytest.approx((by_time * drawn.density(t)).mean().item(), rel=0.03)


def test_metrics_do_not_depend_on_the_density(keyed_noise):
    x0 = torch.randint(V, (50, 4), generator=torch.Generator().manual_seed(0))
    one, two = (
        objective(time).metrics(zero_scores, {"tokens": x0}, keyed_noise())
        for time in (UniformTokenTime(), BellTokenTime(std=0.3))
    )
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_uniform_density_is_what_a_spec_without_one_means():
    assert DLMObjectiveSpec().time == UniformTokenTime()
    with pytest.raises(ValueError, match="uniform_share"):
        BellTokenTime(uniform_share=0.0)
