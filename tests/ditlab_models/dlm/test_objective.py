"""The language model's objective: its draws, its bound for networks with known scores, and
refusals.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.contract import TextCodec
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.network import TokenNoise
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.score_entropy import expected_zero_score_entropy
from ditlab_models.processes.specs import TokenNoiseSchedule
from ditlab_models.processes.uniform_graph import kl_from_uniform
from support.models.draws import KeyedNoise, seeded, train
from support.models.plain_score_entropy import (
    CLEAN,
    MODEL,
    AlwaysWrong,
    Scores,
    T,
    V,
    draw_clean,
    marginal,
    score_entropy,
    unigram,
    zeros,
)


def model(**changes):
    return DLMSpec(**{**MODEL.model_dump(), **changes})


def letters(bytes_per_token):
    return TextCodec(
        lambda text: [], lambda ids: "", vocabulary=V, end=0, bytes_per_token=bytes_per_token
    )


def objective(block_size=None, bytes_per_token=2.5, **changes):
    return FAMILY.build_objective(
        DLMObjectiveSpec(**changes), model(block_size=block_size), letters(bytes_per_token)
    )


def summary(built, network, batch, noise):
    return built.summary(batch_means(built.metrics(network, batch, noise)))


@pytest.fixture
def text():
    """4,000 sequences of 12 tokens, drawn one by one from CLEAN."""
    return {"tokens": draw_clean(4000)}


@pytest.fixture
def few(text):
    return {"tokens": text["tokens"][:6]}


NOISES = [
    TokenNoiseSchedule(),
    TokenNoiseSchedule(sigma_min=1e-4, sigma_max=20.0),
    TokenNoiseSchedule(kind="loglinear", sigma_min=1e-3, sigma_max=7.0),
]


@pytest.mark.parametrize("noise_spec", NOISES)
@pytest.mark.parametrize("block_size", [None, 3])
def test_bound_of_zero_log_scores_is_ln_v(text, noise_spec, block_size):
    built = objective(block_size, noise=noise_spec)
    found = summary(built, Scores(zeros), text, KeyedNoise())
    assert found["bound"] == pytest.approx(math.log(V), abs=0.03)
    assert found["perplexity"] == pytest.approx(math.exp(found["bound"]))
    assert found["bits_per_token"] == pytest.approx(found["bound"] / math.log(2))
    integral = kl_from_uniform(noise_spec.sigma_min, V) - kl_from_uniform(noise_spec.sigma_max, V)
    assert found["score_entropy"] == pytest.approx(integral, abs=0.03)
    assert found["bound"] - found["score_entropy"] == pytest.approx(math.log(V) - integral)


def test_bound_constant_at_the_published_setting():
    """3.3246 of the prior, and the entropy of a token at sigma = 0.001."""
    built = FAMILY.build_objective(DLMObjectiveSpec(), DLMSpec())
    assert built.bound_constant == pytest.approx(3.3246 + 0.0187, abs=1e-4)
    means = dict.fromkeys(("score_entropy", "unweighted"), 10.80618 - 3.32458)
    assert built.summary(means)["perplexity"] == pytest.approx(50257, rel=1e-4)


@pytest.mark.parametrize("noise_spec", NOISES)
def test_bound_of_true_scores_is_their_entropy_and_the_priors_kl(text, noise_spec):
    """For tokens drawn one by one, with q_s their marginal at sigma_min and q_T at sigma_max:
    H(q_s) + KL(q_T || uniform), which is above the entropy of the text and tight where sigma_min is
    small and sigma_max large."""
    found = summary(objective(noise=noise_spec), Scores(unigram), text, KeyedNoise())
    low, high = (
        marginal(torch.tensor(each).double())
        for each in (noise_spec.sigma_min, noise_spec.sigma_max)
    )
    expected = -(low * low.log()).sum() + (high * (V * high).log()).sum()
    assert found["bound"] == pytest.approx(expected.item(), abs=0.06)
    entropy = -(CLEAN * CLEAN.log()).sum().item()
    assert expected.item() > entropy
    if noise_spec.sigma_max == 20:
        assert expected.item() == pytest.approx(entropy, abs=2e-3)


def test_quarters_are_the_integrals_over_their_noise(text):
    built = objective()
    found = summary(built, Scores(zeros), text, KeyedNoise())
    edges = [10 ** (-3 + 0.75 * quarter) for quarter in range(5)]
    for quarter in range(4):
        integral = kl_from_uniform(edges[quarter], V) - kl_from_uniform(edges[quarter + 1], V)
        assert found[f"score_entropy_t{quarter}"] == pytest.approx(4 * integral, rel=0.15)


def test_unweighted_is_the_loss_at_uniform_times(text):
    """The mean over t of the closed form."""
    noise_spec = TokenNoiseSchedule(sigma_min=0.05, sigma_max=2.0)
    built = objective(noise=noise_spec)
    t = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    expected = expected_zero_score_entropy(noise_spec.sigma(t), V).mean().item()
    found = summary(built, Scores(zeros), text, KeyedNoise())["unweighted"]
    assert found == pytest.approx(expected, rel=0.05)


def test_levels_within_a_quarter_stay_there_and_weigh_its_noise():
    noise = TokenNoise(TokenNoiseSchedule(sigma_min=1e-4, sigma_max=20.0), V, None, "log")
    uniform = ((torch.arange(20_000) + 0.5) / 20_000)[:, None]
    for quarter in range(4):
        level = noise.within(quarter / 4, (quarter + 1) / 4, uniform)
        low, high = (
            noise.schedule.sigma(torch.tensor(each / 4)).item() for each in (quarter, quarter + 1)
        )
        assert low * 0.999 < level.sigma.min() and level.sigma.max() < high * 1.001
        # means over t of d sigma/dt times a loss of 1, and of e^-sigma: neither end of sigma is
        # left out
        assert level.weight.double().mean().item() == pytest.approx(4 * (high - low), rel=1e-3)
        falling = (level.weight * (-level.sigma).exp()).double().mean().item()
        assert falling == pytest.approx(4 * (math.exp(-low) - math.exp(-high)), rel=1e-3)


def test_loss_draws_time_move_and_jump_and_weighs_by_d_sigma(few):
    network = Scores(zeros)
    built = objective(time_min=0.2)
    found = built.loss(network, few, KeyedNoise())
    ((x, sigma, targets),) = network.calls
    t = 0.2 + 0.8 * KeyedNoise().uniform("time", (6, 1))
    schedule = TokenNoiseSchedule()
    assert_close(sigma, schedule.sigma(t))
    assert_close(targets.sigma, sigma.expand(6, T))
    losses = score_entropy(zeros(x, None), x, few["tokens"], targets.sigma.double())
    expected = (losses * schedule.rate(t)).mean()
    assert_close(found["score_entropy"], expected)
    assert_close(found["unweighted"], losses.mean())
    assert built.weights == {"score_entropy": 1.0, "unweighted": 0.0}


def test_a_block_causal_network_gets_a_level_for_each_block_and_the_clean_copy(few):
    network = Scores(zeros)
    objective(block_size=3, noise=TokenNoiseSchedule(sigma_min=0.01)).loss(
        network, few, KeyedNoise()
    )
    ((x, sigma, targets),) = network.calls
    assert sigma.shape == (6, 4) and len(sigma.unique()) == 24
    assert_close(targets.sigma, sigma.repeat_interleave(3, 1))
    assert torch.equal(targets.x0, few["tokens"]) and targets.clean_sigma == 0.01
    assert x.shape == (6, T) and not torch.equal(x, few["tokens"])


def test_only_the_weighted_component_trains(few):
    found = objective().loss(FAMILY.build_network(MODEL), few, KeyedNoise())
    assert found["score_entropy"].requires_grad and not found["unweighted"].requires_grad


def test_softmax_has_no_bound_and_may_fall_below_0(few):
    built = objective(score="softmax")
    keeps = Scores(lambda x, sigma: torch.full((*x.shape, V), -30.0, dtype=torch.float64))
    found = summary(built, keeps, {"tokens": few["tokens"][:1]}, KeyedNoise())
    assert list(found) == list(built.metric_names()) and "bound" not in found
    quiet = TokenNoiseSchedule(sigma_min=1e-9, sigma_max=1e-8)  # nothing moves
    assert objective(score="softmax", noise=quiet).loss(keeps, few, KeyedNoise())["unweighted"] < 0
    assert objective(noise=quiet).loss(keeps, few, KeyedNoise())["unweighted"] >= 0


@pytest.mark.parametrize("seed", range(5))
def test_an_error_that_does_not_fall_with_noise_shows_in_few_samples(few, seed):
    """An error at high noise counts 20 times in the bound at sigma_max = 20: an estimate that
    hardly ever evaluated it would call a bad network good."""
    batch = {"tokens": few["tokens"].repeat(40, 1)}
    found = summary(objective(noise=NOISES[1]), AlwaysWrong(1.0), batch, KeyedNoise(seed))
    assert found["score_entropy"] == pytest.approx(20, rel=0.2)


# Enough steps in blocks for a network that sees a block's own clean tokens to fall below the best
# loss.
@pytest.mark.parametrize(
    ("block_size", "vocabulary", "length", "num", "rate", "steps"),
    [(None, 3, 8, 90, 7e-3, 70), (4, V, T, 44, 1e-2, 150)],
)
def test_training_approaches_the_best_loss(block_size, vocabulary, length, num, rate, steps):
    """Sequences count up from a random token: all but the first are certain, ln V / length a
    token.
    """
    batch = {"tokens": (torch.arange(num)[:, None] + torch.arange(length)) % vocabulary}
    spec = model(block_size=block_size, width=32, length=length, vocabulary=vocabulary)
    built = FAMILY.build_objective(DLMObjectiveSpec(noise=TokenNoiseSchedule(sigma_max=4.0)), spec)
    network = FAMILY.build_network(spec)
    train(network, built, batch, KeyedNoise, steps, rate)
    found = summary(built, network.eval(), batch, KeyedNoise(-1))
    assert math.log(vocabulary) / length < found["bound"] < 0.6 * math.log(vocabulary)


def test_loss_by_noise_shows_where_the_loss_sits(text):
    built = objective()
    batch = {"tokens": text["tokens"][:1500]}
    generator = seeded()
    ((kind, figure),) = built.figures(Scores(zeros), batch, None, generator, ["loss_by_noise"])
    assert kind == "loss_by_noise"
    for panel in figure.panels:
        drawn, zero = panel.curves
        assert drawn.x.shape == drawn.y.shape == drawn.band.shape == zero.y.shape
        assert (abs(drawn.y - zero.y) <= 2 * drawn.band + 1e-3).mean() > 0.9
    by_time = figure.panels[0].curves[1]
    assert by_time.y.mean() == pytest.approx(
        kl_from_uniform(1e-3, V) - kl_from_uniform(1.0, V), rel=0.02
    )
    one = {"tokens": text["tokens"][:1]}
    ((_, figure),) = built.figures(Scores(zeros), one, None, generator, ["loss_by_noise"])
    assert len(figure.panels) == 2
