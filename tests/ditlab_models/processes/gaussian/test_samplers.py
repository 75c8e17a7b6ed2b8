"""Discrete-time diffusion: the published schedule, and samplers that recover a known Gaussian."""

import re

import pytest
import torch

from ditlab_models.processes.gaussian import (
    linear_schedule,
    sample_ddim,
    sample_ddpm,
    timesteps,
)
from ditlab_models.processes.specs import LinearBetas
from support.damage import refused

SCHEDULE = linear_schedule(LinearBetas())
MEAN, STD = 0.7, 0.25


def gaussian_denoiser(schedule, mean, std):
    """Return the exact E[x0 | x_t] for data N(mean, std^2): the output of a perfect network."""

    def denoise(x, t):
        bar = schedule.alpha_bar(t)
        gain = std**2 * bar**0.5 / (std**2 * bar + 1 - bar)
        return mean + gain * (x - bar**0.5 * mean)

    return denoise


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0, 0.9999),
        (99, 0.89701815),
        (499, 0.07858724),
        (999, 4.0358298e-5),
    ],
)
def test_published_schedule(t, expected):
    assert SCHEDULE.alphas_cumprod[t].item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("taken", [1, 2, 7, 50, 999, 1000])
def test_timesteps_decrease_from_the_last_without_repetition(taken):
    steps = timesteps(1000, taken)
    assert len(steps) == taken == len(set(steps))
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 999 and (taken == 1 or steps[-1] == 0)


def sample_gaussian(x, taken, eta, draw):
    """Samples with the exact E[x0 | x_t]: ancestral ones where `eta` is None, DDIM's otherwise."""
    denoise, steps = gaussian_denoiser(SCHEDULE, MEAN, STD), timesteps(1000, taken)
    if eta is None:
        return sample_ddpm(denoise, SCHEDULE, x, steps, draw)
    return sample_ddim(denoise, SCHEDULE, x, steps, draw, eta)


class OneDrawEach:
    """Draws for the states of a sampler that adds its draws up: each is 1 in a state of its own and
    0 elsewhere.

    What each draw comes to in the end gives the exact law of the end for normal draws.
    """

    def __init__(self):
        self.num = 0

    def __call__(self, like):
        self.num += 1
        return torch.zeros_like(like).index_fill(0, torch.tensor([self.num]), 1)

    @staticmethod
    def law(end):
        """(Mean, standard deviation)."""
        return end[0].item(), (end - end[0]).norm().item()


@pytest.mark.parametrize("eta", [None, 0.0, 0.5, 1.0])
def test_all_timesteps_recover_a_known_gaussian_exactly(eta):
    draw = OneDrawEach()
    end = sample_gaussian(draw(torch.zeros(1001, dtype=torch.float64)), 1000, eta, draw)
    assert draw.num == (1 if eta == 0 else 1000)
    mean, std = draw.law(end)
    assert mean == pytest.approx(MEAN, abs=0.002)
    assert std == pytest.approx(STD, rel=0.02)


@pytest.mark.parametrize(
    "changes", [{"beta_end": 5e-3}, {"steps": 100}, {"beta_start": 1e-5, "beta_end": 1e-4}]
)
def test_schedules_that_do_not_end_in_noise_name_one_that_does(changes):
    spec = LinearBetas(**changes)
    with pytest.raises(ValueError, match=r"leaves alpha_bar=0\.\d+ at the last timestep") as caught:
        spec.check_ends_in_noise()
    message = str(caught.value)
    assert f"alpha_bar={linear_schedule(spec).alphas_cumprod[-1]:.3g} " in message
    assert (
        f"objective.noise.beta_end={spec.beta_end:g} " in message
        and f"noise.steps={spec.steps} " in message
    )
    assert f"objective.noise.beta_start={spec.beta_start:g} " in message
    remedy = float(re.search(r"set objective\.noise\.beta_end to ([\d.e-]+) or more", message)[1])
    LinearBetas(**{**changes, "beta_end": remedy}).check_ends_in_noise()


def test_too_few_timesteps_have_one_remedy():
    with refused(r"\(at most 0\.05\); raise objective\.noise\.steps\.$", ValueError):
        LinearBetas(steps=4).check_ends_in_noise()
