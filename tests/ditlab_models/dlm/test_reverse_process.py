"""The reverse process of tokens: steps, draws, and times of training."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dlm import sampling
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.sampling import (
    LAST_TIME,
    analytic_probabilities,
    draw_tokens,
    euler_probabilities,
    reverse_steps,
)
from ditlab_models.dlm.spec import (
    BellTokenTime,
    DLMObjectiveSpec,
    DLMSamplingSpec,
    DLMSpec,
)
from ditlab_models.processes.score_entropy import expected_zero_score_entropy
from ditlab_models.processes.specs import TokenNoiseSchedule
from support.models.draws import KeyedNoise, seeded
from support.models.plain_score_entropy import Scores, V, zeros
from support.models.results import Results
from support.models.true_scores import PAIR, SUM, TrueScores, distance, every_sequence, noisy

F64 = torch.float64
WIDE = TokenNoiseSchedule(sigma_min=1e-3, sigma_max=30.0)
LOUD = TokenNoiseSchedule(sigma_min=0.2, sigma_max=2.0)  # with noise to be taken away at t = 1e-5
ONE = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=F64)


def passes_of(noise=WIDE, score="log", **sampling):
    return reverse_steps(DLMSamplingSpec(**sampling), DLMObjectiveSpec(noise=noise, score=score))


def final_law(clean, passes, given=None):
    """The exact law (V, ..., V) after all steps, from the law at the first one's noise; `given`
    fixes tokens.
    """
    vocabulary, length = clean.shape[0], clean.ndim
    network, states = TrueScores(clean), every_sequence(vocabulary, length)
    law = noisy(clean, passes[0].sigma).flatten()
    for place, token in (given or {}).items():
        law = law * (states[:, place] == token)
    law = law / law.sum()
    for each in passes:
        output = network(states, torch.full((len(states),), each.sigma, dtype=F64))
        probabilities = each.probabilities(output.flatten(0, 1), states.flatten()).view(
            len(states), length, vocabulary
        )
        probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).detach()
        for place, token in (given or {}).items():
            probabilities[:, place] = torch.eye(vocabulary, dtype=F64)[token]
        kernel = torch.ones(len(states), len(states), dtype=F64)
        for place in range(length):
            kernel *= probabilities[:, place][:, states[:, place]]
        law = law @ kernel
    return law.view(clean.shape)


@pytest.mark.parametrize("kind", ["geometric", "loglinear"])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_analytic_steps_recover_the_law_of_one_token_exactly(steps, kind):
    """Two or more tokens change at once in a step, each as if the others stayed; one is exact in
    any steps.
    """
    noise = LOUD.model_copy(update={"kind": kind})
    assert (
        distance(final_law(ONE, passes_of(solver="analytic", steps=steps, noise=noise)), ONE)
        < 1e-12
    )


def test_the_last_step_removes_the_remaining_noise():
    left = float(LOUD.sigma(torch.tensor(LAST_TIME, dtype=F64)))
    law = final_law(ONE, passes_of(solver="analytic", steps=3, noise=LOUD, denoise=False))
    assert distance(law, noisy(ONE, left)) < 1e-12 and distance(law, ONE) > 0.05
    for solver in ("euler", "analytic"):
        with_it, without = (
            passes_of(solver=solver, steps=3, denoise=denoise) for denoise in (True, False)
        )
        assert len(with_it) == 4 and len(without) == 3
        assert (
            with_it[-1].sigma
            == with_it[-2].sigma_after
            == pytest.approx(1e-3 * 3e4**LAST_TIME, rel=1e-12)
            and with_it[-1].sigma_after == 0
        )


@pytest.mark.parametrize(
    ("solver", "few", "many"), [("analytic", 0.016, 0.004), ("euler", 0.0056, 0.0014)]
)
def test_a_law_of_two_tokens_is_recovered_with_many_steps(solver, few, many):
    """The error falls like 1 / steps; bounds are a fifth above what was found."""
    errors = [
        distance(final_law(PAIR, passes_of(solver=solver, steps=steps)), PAIR)
        for steps in (64, 256)
    ]
    assert errors[0] < few and errors[1] < many
    assert distance(noisy(PAIR, 30.0), PAIR) > 0.4


def test_euler_probabilities_are_never_negative():
    # 1, 3, 6
    scores = torch.tensor([[0.0, 3.0, 6.0]], dtype=F64).log().nan_to_num(neginf=0.0)
    small = euler_probabilities(0.1, "log")(scores, torch.tensor([0]))
    assert_close(small, torch.tensor([[0.7, 0.1, 0.2]], dtype=F64))
    large = euler_probabilities(1.0, "log")(scores, torch.tensor([0]))  # one-hot + rate: -2, 1, 2
    assert_close(large, torch.tensor([[0.0, 1.0, 2.0]], dtype=F64))


def test_categorical_draws_from_the_softmax_of_the_output():
    """For one token that is its law at the step's noise, whatever it was; at the last step, t =
    1e-5. No denoising.
    """
    passes = passes_of(solver="categorical", steps=5, noise=LOUD)
    assert len(passes) == 5
    left = float(LOUD.sigma(torch.tensor(LAST_TIME, dtype=F64)))
    assert passes[-1].sigma == pytest.approx(left) and passes[0].sigma == pytest.approx(2.0)
    assert distance(final_law(ONE, passes), noisy(ONE, left)) < 1e-12


@pytest.mark.parametrize("probabilities_of", [euler_probabilities, analytic_probabilities])
def test_a_softmax_score_is_read_as_the_score_itself(probabilities_of):
    x, scores = torch.tensor([1]), torch.tensor([[0.2, 1.0, 0.3]], dtype=F64)
    logits = (scores / 0.5).log().scatter(-1, x[:, None], 0.0)  # softmax: 0.2, 0.5, 0.3
    from_scores = probabilities_of(0.4, "log")(scores.log(), x)
    assert_close(probabilities_of(0.4, "softmax")(logits, x), from_scores)
    assert not torch.allclose(probabilities_of(0.4, "log")(logits, x), from_scores, atol=0.01)


def test_clamped_tokens_stay_and_tokens_between_depend_on_both_sides():
    """The middle token depends on both neighbours, on neither alone; `given` are the outer two.

    Prompts stand in noisy sequences as clean tokens, so this law is near the true one, not equal to
    it: 0.171 from it here, where a token that knew no neighbour, or one, would be 0.65 away.
    """
    passes = passes_of(solver="analytic", steps=128)
    for left, right in ((0, 2), (1, 1)):
        expected = SUM[left, :, right] / SUM[left, :, right].sum()
        found = final_law(SUM, passes, given={0: left, 2: right})[left, :, right]
        assert float(found.sum()) == pytest.approx(1.0)
        assert (
            distance(found, expected)
            < 0.18
            < 0.6
            < distance(torch.full((3,), 1 / 3).double(), expected)
        )


GPT2 = 50257


def as_they_are(output, _x):
    return output


def draw(probabilities, uniform):
    """Draw one token for each uniform number, all by the same probabilities."""
    rows = torch.tensor(probabilities, dtype=F64).expand(1, len(uniform), -1)
    at = torch.tensor([uniform], dtype=F64)
    return draw_tokens(as_they_are, rows, torch.zeros(1, len(uniform), dtype=torch.int64), at)[
        0
    ].tolist()


def test_tokens_are_drawn_by_their_probabilities():
    assert draw([0.2, 0.0, 0.5, 0.3], [0.0, 0.1999, 0.2, 0.6999, 0.7, 1 - 2**-53]) == [
        0,
        0,
        2,
        2,
        3,
        3,
    ]


def test_probabilities_need_not_sum_to_1_and_tokens_of_0_are_never_drawn():
    assert draw([0.0, 4.0, 0.0, 12.0, 0.0], [0.0, 0.2499, 0.25, 1 - 2**-53]) == [1, 1, 3, 3]
    assert draw([0.0, 1.0, 0.0], [0.0, 1 - 2**-53]) == [1, 1]


def test_tiny_probabilities_are_kept():
    """A step of 1e-4 of noise from log scores 0: each other token of 50,257 has a probability of
    2e-9.
    """
    output, x = torch.zeros(1, 3, GPT2), torch.full((1, 3), 7)
    first = (1e-4 / GPT2) * 3.5  # within the fourth token's probability
    last = 1 - (1e-4 / GPT2) * 2.5  # within those of the third from the end
    uniform = torch.tensor([[first, 0.5, last]], dtype=F64)
    assert draw_tokens(euler_probabilities(1e-4, "log"), output, x, uniform).tolist() == [
        [3, 7, GPT2 - 3]
    ]


@pytest.mark.parametrize("entries", [1, 40, 10**6])
def test_chunks_change_nothing(monkeypatch, entries):
    generator = seeded()
    output, x = (
        torch.randn(3, 10, 11, generator=generator),
        torch.randint(11, (3, 10), generator=generator),
    )
    uniform = torch.rand(3, 10, generator=generator, dtype=F64)
    at_once = draw_tokens(euler_probabilities(0.5, "log"), output, x, uniform)
    monkeypatch.setattr(sampling, "CHUNK_ENTRIES", entries)
    assert torch.equal(draw_tokens(euler_probabilities(0.5, "log"), output, x, uniform), at_once)


@pytest.mark.parametrize("score", ["log", "softmax"])
@pytest.mark.parametrize("solver", ["euler", "analytic", "categorical"])
def test_no_second_tensor_of_the_outputs_size_is_made(monkeypatch, solver, score):
    monkeypatch.setattr(sampling, "CHUNK_ENTRIES", 1000)
    output, x = torch.randn(2, 64, 100), torch.randint(100, (2, 64))
    probabilities = {
        "euler": sampling.euler_probabilities(0.1, score),
        "analytic": sampling.analytic_probabilities(0.1, score),
        "categorical": sampling.categorical_probabilities,
    }
    uniform = torch.rand(2, 64, dtype=F64)
    with Results() as results:
        draw_tokens(probabilities[solver], output, x, uniform)
    known = output.untyped_storage().data_ptr()
    sizes = [each.numel() for _, each in results.made if each.untyped_storage().data_ptr() != known]
    assert 0 < max(sizes) <= 1000


def test_nan_output_still_gives_tokens_of_the_vocabulary():
    nan = torch.full((1, 2, 5), torch.nan)
    drawn = draw_tokens(
        euler_probabilities(0.1, "log"), nan, torch.zeros(1, 2, dtype=torch.int64), torch.rand(1, 2)
    )
    assert ((drawn >= 0) & (drawn < 5)).all()


NOISE = TokenNoiseSchedule(sigma_min=0.05, sigma_max=2.0)
BELLS = [{}, {"mean": 1.5, "std": 0.4}, {"mean": -1.0, "std": 3.0, "uniform_share": 0.5}]


def objective(time):
    model = DLMSpec(
        length=4, vocabulary=V, depth=1, num_heads=2, width=16, condition_width=8, time_width=8
    )
    return FAMILY.build_objective(DLMObjectiveSpec(noise=NOISE, time=time, time_min=0.0), model)


@pytest.mark.parametrize("fields", BELLS)
def test_the_density_is_the_histogram_and_integrates_to_one(fields):
    time = BellTokenTime(**fields)
    s = (torch.arange(100_000, dtype=F64) + 0.5) / 100_000
    density = time.density(s)
    assert density.mean().item() == pytest.approx(1, abs=1e-3)
    drawn = time.draw(KeyedNoise(), (200_000, 1))
    counts = torch.histc(drawn.s, 10, 0, 1).double() / 200_000
    assert torch.allclose(
        counts, density.view(10, -1).mean(1) / 10, atol=5 * math.sqrt(0.25 / 200_000)
    )
    assert drawn.weight.max() <= 1 / time.uniform_share + 1e-4
    assert drawn.weight.double().mean().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("fields", BELLS)
def test_the_loss_is_the_integral_under_any_density(fields):
    """At log scores 0, whose loss by noise has a closed form; and without the division it is the
    density's mean.
    """
    num = 40_000
    x0 = torch.randint(V, (num, 4), generator=seeded())
    schedule = NOISE
    t = (torch.arange(4000, dtype=F64) + 0.5) / 4000
    by_time = expected_zero_score_entropy(schedule.sigma(t), V) * schedule.rate(t)
    found = objective(BellTokenTime(**fields)).loss(Scores(zeros), {"tokens": x0}, KeyedNoise())
    assert found["score_entropy"].item() == pytest.approx(by_time.mean().item(), rel=0.03)
    assert found["unweighted"].item() == pytest.approx(
        expected_zero_score_entropy(schedule.sigma(t), V).mean().item(), rel=0.03
    )
    drawn = BellTokenTime(**fields, weighting="drawn")
    found = objective(drawn).loss(Scores(zeros), {"tokens": x0}, KeyedNoise())["score_entropy"]
    assert found.item() == pytest.approx((by_time * drawn.density(t)).mean().item(), rel=0.03)
