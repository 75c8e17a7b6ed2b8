"""Training and sampling by predicted noise: closed forms of a Gaussian, the learned variance."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from ditlab_models.contract import SampleRequest
from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTSamplingSpec, DiTSpec
from ditlab_models.processes import noise_prediction
from ditlab_models.processes.analytic_targets import GaussianMixture
from ditlab_models.processes.gaussian import linear_schedule, timesteps
from ditlab_models.processes.noise_prediction import GaussianSampler, NoiseObjective
from ditlab_models.processes.specs import (
    GaussianSamplingSpec,
    GaussianSpec,
    LinearBetas,
)
from support.damage import refused
from support.models.draws import Answering, KeyedNoise, seeded

F64 = torch.float64
MEAN, STD = 0.7, 0.25
SCHEDULE = linear_schedule(LinearBetas())
IMAGE = (1, 2, 2)
MODEL = DiTSpec(
    image_size=8, patch_size=4, width=32, depth=1, num_heads=2, variance_channels="predicted"
)
FIXED = {"weights": {"bound": 0.0}}
START = torch.linspace(-2, 2, 8, dtype=F64).view(2, *IMAGE)


def draw_ones(monkeypatch):
    """Put 1 in the place of every normal draw of a sampler."""
    ones = lambda self, like: torch.ones(like.shape, dtype=F64)  # noqa: E731
    monkeypatch.setattr(noise_prediction.SampleDraws, "normal", ones)


class Exact(nn.Module):
    """The best noise prediction for data N(MEAN, STD^2), and a constant v of the variance."""

    def __init__(self, v=None):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros((), dtype=F64))
        self.v, self.times = v, []

    def forward(self, x, t):
        self.times += t.unique().tolist()
        bar = SCHEDULE.alphas_cumprod[t.long()].view(-1, 1, 1, 1)
        noise = (1 - bar).sqrt() * (x - bar.sqrt() * MEAN) / (STD**2 * bar + 1 - bar)
        return noise if self.v is None else torch.cat((noise, torch.full_like(noise, self.v)), 1)


def sampler(variance="posterior", **sampling):
    objective = GaussianSpec(variance=variance, **({} if variance == "learned_range" else FIXED))
    return GaussianSampler(GaussianSamplingSpec(**sampling), objective, IMAGE, None)


def step(t, s):
    """(A, B, beta, posterior variance) of E[x_s | x_t = x] = A x + B for data N(MEAN, STD^2), s <
    t.
    """
    bar_t, bar_s = (1.0 if each < 0 else float(SCHEDULE.alphas_cumprod[each]) for each in (t, s))
    # E[x0 | x] = MEAN + gain (x - sqrt(bar_t) MEAN)
    gain = STD**2 * bar_t**0.5 / (STD**2 * bar_t + 1 - bar_t)
    beta = 1 - bar_t / bar_s
    data, noised = bar_s**0.5 * beta / (1 - bar_t), (1 - beta) ** 0.5 * (1 - bar_s) / (1 - bar_t)
    offset = MEAN - gain * bar_t**0.5 * MEAN
    return data * gain + noised, data * offset, beta, (1 - bar_s) / (1 - bar_t) * beta


@pytest.mark.parametrize("steps", [1, 7, 250])
@pytest.mark.parametrize(
    ("variance", "v"), [("posterior", None), ("beta", None), ("learned_range", 0.3)]
)
def test_spaced_ddpm_follows_the_closed_form(monkeypatch, variance, v, steps):
    """With every normal draw replaced by 1, the path is a recursion of the steps' means and
    standard deviations.
    """
    draw_ones(monkeypatch)
    network = Exact(v)
    found = sampler(variance, steps=steps).sample(network, {}, 2, seeded(), True, START).trajectory
    expected, taken = [START], timesteps(1000, steps)
    for t, s in zip(taken, [*taken[1:], -1], strict=True):
        a, b, beta, posterior = step(t, s)
        x = a * expected[-1] + b
        if s >= 0:
            share = {"posterior": 0.0, "beta": 1.0, "learned_range": (0.3 + 1) / 2}[variance]
            x = x + math.exp(0.5 * (share * math.log(beta) + (1 - share) * math.log(posterior)))
        expected.append(x)
    assert_close(found, torch.stack(expected), rtol=0, atol=1e-9)
    assert network.times == taken  # the original step numbers, not those of the spaced process


@pytest.mark.parametrize(
    ("steps", "v", "eta"), [(5, None, 0.0), (50, None, 0.7), (50, 0.3, 0.0), (7, 0.3, 1.0)]
)
def test_ddim_follows_the_closed_form(monkeypatch, steps, v, eta):
    """Deviations from the mean are multiplied, step by step, by a number that the schedule gives;
    `eta` adds normal draws, all 1 here, of its share of the posterior's variance.
    """
    draw_ones(monkeypatch)
    variance = "posterior" if v is None else "learned_range"
    made = sampler(variance, solver="ddim", steps=steps, eta=eta)
    found = made.sample(Exact(v), {}, 2, seeded(), True, START).trajectory
    taken = timesteps(1000, steps)
    bars = [float(SCHEDULE.alphas_cumprod[t]) for t in taken] + [1.0]
    deviation, expected = START - bars[0] ** 0.5 * MEAN, [START]
    for bar_t, bar_s in pairwise(bars):
        gain = STD**2 * bar_t**0.5 / (STD**2 * bar_t + 1 - bar_t)
        noise = (1 - bar_t**0.5 * gain) / (1 - bar_t) ** 0.5
        added = eta * ((1 - bar_s) / (1 - bar_t) * (1 - bar_t / bar_s)) ** 0.5
        deviation = (bar_s**0.5 * gain + (1 - bar_s - added**2) ** 0.5 * noise) * deviation + added
        expected.append(bar_s**0.5 * MEAN + deviation)
    assert_close(found, torch.stack(expected), rtol=0, atol=1e-9)


def objective(spec=None, model=MODEL):
    return NoiseObjective(spec or GaussianSpec(), model, {})


class Fixed(nn.Module):
    """A network that says the same of everything: `noise`, and `v` for the variance."""

    def __init__(self, noise, v):
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(noise, dtype=F64))
        self.v = nn.Parameter(torch.tensor(v, dtype=F64))
        self.seen = []

    def forward(self, x, t, label=None):
        self.seen.append((x, t))
        return torch.cat((self.noise.expand_as(x), self.v.expand_as(x)), 1)


class Times:
    """A noise source of given times; its normal numbers are drawn in float64."""

    def __init__(self, times):
        self.times = torch.as_tensor(times, dtype=F64)

    def uniform(self, name, shape):
        return self.times

    def normal(self, name, shape):
        return torch.randn(tuple(shape), generator=seeded(), dtype=F64)


@pytest.mark.parametrize("v", [-1.0, 0.25, 1.0])
def test_loss_is_that_of_its_definition(v):
    """Noise: a mean square. Bound: T times the KL divergence of two normal distributions, in bits a
    dimension.
    """
    t = torch.tensor([1, 2, 400, 999])
    noise_source, image = (
        Times((t + 0.5) / 1000),
        torch.linspace(-1, 1, 4 * 64, dtype=F64).view(4, 1, 8, 8),
    )
    network, noise = Fixed(0.2, v), Times([0.0]).normal("noise", (4, 1, 8, 8))
    found = objective().loss(network, {"image": image}, noise_source)
    ((x_t, seen),) = network.seen
    assert seen.tolist() == t.tolist()
    bar, beta = SCHEDULE.alphas_cumprod[t].view(-1, 1, 1, 1), SCHEDULE.betas[t].view(-1, 1, 1, 1)
    before = SCHEDULE.alphas_cumprod[t - 1].view(-1, 1, 1, 1)
    assert_close(x_t, bar.sqrt() * image + (1 - bar).sqrt() * noise)
    assert_close(found["noise"], (noise - 0.2).square().mean())

    def mean(x0):
        return (before.sqrt() * beta * x0 + (1 - beta).sqrt() * (1 - before) * x_t) / (1 - bar)

    posterior = (1 - before) / (1 - bar) * beta
    learned = beta ** ((v + 1) / 2) * posterior ** ((1 - v) / 2)
    x0 = (x_t - (1 - bar).sqrt() * 0.2) / bar.sqrt()
    divergence = kl_divergence(
        Normal(mean(image), posterior.sqrt().expand_as(image)),
        Normal(mean(x0), learned.sqrt().expand_as(image)),
    )
    assert_close(found["bound"], 1000 * divergence.mean() / math.log(2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("v", [-1.0, 0.25, 1.0])
def test_bound_at_step_0_is_the_likelihood_of_pixels(v):
    """The variance interpolates between beta_0 and the posterior's of step 1, as that of step 0 is
    0.
    """
    levels = torch.tensor([-1.0, -1 + 2 / 255, 0.2 / 51, 1.0], dtype=F64)
    image = levels.view(4, 1, 1, 1).expand(4, 1, 8, 8)
    network, noise = Fixed(0.2, v), Times([0.0]).normal("noise", (4, 1, 8, 8))
    found = objective().loss(network, {"image": image}, Times([0.0] * 4))["bound"]
    bar_0, bar_1 = SCHEDULE.alphas_cumprod[:2]
    beta_0, beta_1 = SCHEDULE.betas[:2]
    posterior_1 = (1 - bar_0) / (1 - bar_1) * beta_1
    std = (beta_0 ** ((v + 1) / 2) * posterior_1 ** ((1 - v) / 2)).sqrt()
    x_t = bar_0.sqrt() * image + (1 - bar_0).sqrt() * noise
    law = Normal((x_t - (1 - bar_0).sqrt() * 0.2) / bar_0.sqrt(), std.expand_as(image))
    above = torch.where(image == 1, torch.ones_like(image), law.cdf(image + 1 / 255))
    below = torch.where(image == -1, torch.zeros_like(image), law.cdf(image - 1 / 255))
    expected = -(above - below).clamp(min=1e-12).log().mean() / math.log(2) * 1000
    assert_close(found, expected, rtol=1e-8, atol=0)


def test_bound_trains_the_variance_alone():
    network, image = Fixed(0.2, 0.1), torch.rand(4, 1, 8, 8, dtype=F64)
    components = objective().loss(network, {"image": image}, Times([0.0, 0.1, 0.5, 0.9]))
    of_noise, of_variance = torch.autograd.grad(components["bound"], [network.noise, network.v])
    assert of_noise == 0 and of_variance != 0


def test_held_out_metrics_cover_each_quarter_of_timesteps():
    image = torch.rand(6, 1, 8, 8, dtype=F64)
    network, built = Fixed(0.0, 0.0), objective()
    held_out = built.metrics(network, {"image": image}, KeyedNoise())
    assert all(value.shape == (6,) for value in held_out.values())
    assert held_out["noise"].mean().item() == pytest.approx(1, abs=0.1)  # the noise's own square
    quarters = [(4 * t / 1000).long().unique().tolist() for _, t in network.seen]
    assert quarters == [[0], [1], [2], [3]]


def test_the_best_network_has_no_regret():
    law = GaussianMixture(torch.full((1, 4), MEAN).double().numpy(), STD)
    loss = NoiseObjective(GaussianSpec(variance="beta", **FIXED), DiTSpec(image_size=4), {})
    batch = {"image": MEAN + STD * torch.randn(8, *IMAGE, dtype=F64)}
    assert loss.knows_optimum(law)
    found = loss.excess_loss(Exact(), law, batch, KeyedNoise())
    assert_close(found, torch.zeros(8, dtype=F64))


def test_guidance_changes_the_first_channels_alone():
    """The rest, a variance's channels among them, is the conditional prediction's."""
    by_label = Answering(lambda x, t, label: label.to(x).view(-1, 1, 1, 1).expand(-1, 8, 2, 2))
    outputs = {}
    for guided in (None, 3):
        spec = GaussianSamplingSpec(guidance=3.0, guided_channels=guided)
        sampler = GaussianSampler(spec, GaussianSpec(), (4, 2, 2), 10)
        conditions = sampler.conditions(2, SampleRequest(label=2))
        outputs[guided] = sampler.guided(by_label, conditions)(torch.zeros(2, 4, 2, 2), 5)[
            0, :, 0, 0
        ].tolist()
    assert outputs[None] == [10 + 3 * (2 - 10)] * 4 + [2] * 4
    assert outputs[3] == [10 + 3 * (2 - 10)] * 3 + [2] * 5


def test_objective_and_sampling_of_two_processes_do_not_mix():
    with refused(
        r"sampling\.solver=euler is for objective\.process=flow, and .* ddpm, ddim\.", ValueError
    ):
        FAMILY.build_sampler(DiTSamplingSpec(), MODEL, GaussianSpec())
    with refused(
        r"sampling\.solver=ddpm is for objective\.process=gaussian, .* to one of eul", ValueError
    ):
        FAMILY.build_sampler(GaussianSamplingSpec(), DiTSpec(), FAMILY.objective())
    with refused(r"model\.variance_channels=predicted is read under .*gaussian alone", ValueError):
        FAMILY.build_objective(FAMILY.objective(), MODEL)
    with refused(
        r"objective\.variance=learned_range needs channels .* model\.variance_channe", ValueError
    ):
        FAMILY.build_objective(GaussianSpec(), DiTSpec())
