"""Discrete-time diffusion: the published schedule, and samplers that recover a known Gaussian."""

import re

import pytest
import torch

from ditlab_models.processes.gaussian import (
    linear_schedule,
    posterior_std,
    sample_ddim,
    sample_ddpm,
    timesteps,
)
from ditlab_models.processes.specs import LinearBetas

SCHEDULE = linear_schedule(LinearBetas())
MEAN, STD = 0.7, 0.25
NUM = 40_000


def gaussian_denoiser(schedule, mean, std):
    """Return the exact E[x0 | x_t] for data N(mean, std^2): the output of a perfect network."""

    def denoise(x, t):
        bar = schedule.alpha_bar(t)
        gain = std**2 * bar**0.5 / (std**2 * bar + 1 - bar)
        return mean + gain * (x - bar**0.5 * mean)

    return denoise


def draws(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda like: torch.randn(like.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0, 0.9999),
        (1, 0.99978009),
        (99, 0.89701815),
        (249, 0.52408537),
        (499, 0.07858724),
        (999, 4.0358298e-5),
    ],
)
def test_published_schedule(t, expected):
    assert SCHEDULE.alphas_cumprod[t].item() == pytest.approx(expected, rel=1e-7)


def test_tables_belong_together():
    assert SCHEDULE.num_steps == 1000
    assert SCHEDULE.betas[0] == 1e-4 and SCHEDULE.betas[-1] == 0.02
    torch.testing.assert_close(
        SCHEDULE.betas.diff(), torch.full((999,), 0.0199 / 999, dtype=torch.float64)
    )
    torch.testing.assert_close(SCHEDULE.sqrt_alphas_cumprod**2, SCHEDULE.alphas_cumprod)
    torch.testing.assert_close(
        SCHEDULE.sqrt_one_minus_alphas_cumprod**2, 1 - SCHEDULE.alphas_cumprod
    )
    assert int((SCHEDULE.alphas_cumprod < 0.5).nonzero()[0]) == 259
    assert SCHEDULE.alpha_bar(-1) == 1


def test_noised_is_the_closed_form_of_many_single_steps():
    """x_t from t + 1 single steps x <- sqrt(alpha) x + sqrt(beta) noise has the mean and variance
    of one.
    """
    x0 = torch.full((NUM,), 2.0, dtype=torch.float64)
    draw, short = draws(), linear_schedule(LinearBetas(steps=20, beta_start=0.01, beta_end=0.2))
    x = x0
    for beta in short.betas:
        x = (1 - beta).sqrt() * x + beta.sqrt() * draw(x)
    t = torch.full((NUM,), 19)
    one = short.noised(x0, draw(x0), t)
    for found in (x, one):
        assert found.mean().item() == pytest.approx(
            2 * short.sqrt_alphas_cumprod[-1].item(), abs=0.02
        )
        assert found.var().item() == pytest.approx(1 - short.alphas_cumprod[-1].item(), rel=0.03)


def test_noised_takes_each_samples_own_timestep():
    x0, noise = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    t = torch.tensor([0, 500, 999])
    noised = SCHEDULE.noised(x0, noise, t)
    for i, step in enumerate(t.tolist()):
        bar = SCHEDULE.alpha_bar(step)
        torch.testing.assert_close(noised[i], bar**0.5 * x0[i] + (1 - bar) ** 0.5 * noise[i])


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


@pytest.mark.parametrize("eta", [None, 0.0, 0.5, 1.0])
def test_samplers_recover_a_known_gaussian(eta):
    """Samples are of N(MEAN, STD^2)."""
    draw = draws(1)
    found = sample_gaussian(draw(torch.empty(NUM)), 100, eta, draw)
    assert found.mean().item() == pytest.approx(MEAN, abs=4 * STD / NUM**0.5 + 0.002)
    # the posterior's variance is a little small where x0 itself is uncertain (Ho et al., section
    # 3.2)
    assert found.std().item() == pytest.approx(STD, rel=0.12)


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


def test_ddim_with_eta_1_is_ancestral_sampling():
    denoise, steps = gaussian_denoiser(SCHEDULE, MEAN, STD), timesteps(1000, 25)
    x = draws(2)(torch.empty(64))
    one = sample_ddpm(denoise, SCHEDULE, x, steps, draws(3))
    other = sample_ddim(denoise, SCHEDULE, x, steps, draws(3), eta=1.0)
    torch.testing.assert_close(one, other)


def test_ddim_draws_nothing_and_maps_noise_to_data_in_order():
    """The flow of a Gaussian is affine: mean + std z, up to the discretisation."""
    denoise = gaussian_denoiser(SCHEDULE, MEAN, STD)

    def never(like):
        raise AssertionError("DDIM with eta 0 drew noise")

    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    found = sample_ddim(denoise, SCHEDULE, z, timesteps(1000, 1000), never)
    torch.testing.assert_close(found, MEAN + STD * z, rtol=0, atol=0.02)


def test_data_at_one_point_is_reached_exactly():
    point = gaussian_denoiser(SCHEDULE, MEAN, 0.0)
    for taken in (1, 2, 50):
        x = draws(4)(torch.empty(16))
        steps = timesteps(1000, taken)
        for found in (
            sample_ddpm(point, SCHEDULE, x, steps, draws(5)),
            sample_ddim(point, SCHEDULE, x, steps, draws(5)),
        ):
            torch.testing.assert_close(found, torch.full((16,), MEAN, dtype=torch.float64))


def test_posterior_std_as_written_in_eq_7():
    for t in (1, 10, 999):
        bar, before = SCHEDULE.alphas_cumprod[t], SCHEDULE.alphas_cumprod[t - 1]
        expected = ((1 - before) / (1 - bar) * SCHEDULE.betas[t]).sqrt().item()
        assert posterior_std(SCHEDULE, t, t - 1) == pytest.approx(expected, rel=1e-9)
    assert posterior_std(SCHEDULE, 5, -1) == 0


def test_frames_are_one_a_step():
    frames = []
    sample_ddpm(
        gaussian_denoiser(SCHEDULE, 0, 1),
        SCHEDULE,
        torch.zeros(2),
        timesteps(1000, 7),
        draws(),
        frames.append,
    )
    assert len(frames) == 7


def test_falling_betas_are_refused():
    with pytest.raises(
        ValueError,
        match=r"objective.noise.beta_end=0.0001 is below objective.noise.beta_start=0.02",
    ):
        LinearBetas(beta_start=0.02, beta_end=0.0001)


@pytest.mark.parametrize("changes", [{}, {"beta_end": 1e-2, "beta_start": 1e-5}, {"steps": 325}])
def test_schedules_that_end_in_noise_pass(changes):
    LinearBetas(**changes).check_ends_in_noise()


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
    with pytest.raises(ValueError, match=r"\(at most 0\.05\); raise objective\.noise\.steps\.$"):
        LinearBetas(steps=4).check_ends_in_noise()
