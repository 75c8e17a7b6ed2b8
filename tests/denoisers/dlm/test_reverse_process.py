"""The reverse process: exact laws of every sequence, step by step, under known true scores."""

import pytest
import torch

from denoisers.dlm.reverse_process import LAST_TIME, analytic_probabilities, euler_probabilities, reverse_steps
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSamplingSpec
from denoisers.processes.specs import TokenNoiseSchedule
from denoisers.processes.uniform_graph import sigma_schedule
from support.models.true_scores import PAIR, SUM, TrueScores, distance, every_sequence, noisy

WIDE = TokenNoiseSchedule(sigma_min=1e-3, sigma_max=30.0)
LOUD = TokenNoiseSchedule(sigma_min=0.2, sigma_max=2.0)  # with noise to be taken away at t = 1e-5
ONE = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def passes_of(noise=WIDE, score="log", **sampling):
    return reverse_steps(DLMSamplingSpec(**sampling), DLMObjectiveSpec(noise=noise, score=score))


def final_law(clean, passes, given=None):
    """The exact law (V, ..., V) after all steps, from the law at the first one's noise; `given` fixes tokens."""
    vocabulary, length = clean.shape[0], clean.ndim
    network, states = TrueScores(clean), every_sequence(vocabulary, length)
    law = noisy(clean, passes[0].sigma).flatten()
    for place, token in (given or {}).items():
        law = law * (states[:, place] == token)
    law = law / law.sum()
    for each in passes:
        output = network(states, torch.full((len(states),), each.sigma, dtype=torch.float64))
        probabilities = each.probabilities(output.flatten(0, 1), states.flatten()).view(len(states), length, vocabulary)
        probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).detach()
        for place, token in (given or {}).items():
            probabilities[:, place] = torch.eye(vocabulary, dtype=torch.float64)[token]
        kernel = torch.ones(len(states), len(states), dtype=torch.float64)
        for place in range(length):
            kernel *= probabilities[:, place][:, states[:, place]]
        law = law @ kernel
    return law.view(clean.shape)


@pytest.mark.parametrize("sigma", [(2.0, 1.5), (0.5, 0.1), (0.01, 0.0)])
def test_an_analytic_step_from_true_scores_is_the_exact_way_back(sigma):
    now, before = sigma
    at_now, at_before = noisy(ONE, now), noisy(ONE, before)
    scores = TrueScores(ONE)(torch.arange(4)[:, None], torch.full((4,), now, dtype=torch.float64))[:, 0]
    probabilities = analytic_probabilities(now - before, "log")(scores, torch.arange(4))
    kernel = noisy(torch.eye(4, dtype=torch.float64)[0], now - before)  # of token 0; the others are its like
    forward = torch.where(torch.eye(4, dtype=torch.bool), kernel[0], kernel[1])
    torch.testing.assert_close(probabilities, forward.T * at_before / at_now[:, None], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["geometric", "loglinear"])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_analytic_steps_recover_the_law_of_one_token_exactly(steps, kind):
    """Two or more tokens change at once in a step, each as if the others stayed; one is exact in any steps."""
    noise = LOUD.model_copy(update={"kind": kind})
    assert distance(final_law(ONE, passes_of(solver="analytic", steps=steps, noise=noise)), ONE) < 1e-12


def test_the_last_step_removes_the_remaining_noise():
    left = float(sigma_schedule(LOUD).sigma(torch.tensor(LAST_TIME, dtype=torch.float64)))
    law = final_law(ONE, passes_of(solver="analytic", steps=3, noise=LOUD, denoise=False))
    assert distance(law, noisy(ONE, left)) < 1e-12 and distance(law, ONE) > 0.05
    for solver in ("euler", "analytic"):
        with_it, without = (passes_of(solver=solver, steps=3, denoise=denoise) for denoise in (True, False))
        assert len(with_it) == 4 and len(without) == 3
        assert (
            with_it[-1].sigma == with_it[-2].sigma_after == pytest.approx(1e-3 * 3e4**LAST_TIME, rel=1e-12)
            and with_it[-1].sigma_after == 0
        )


@pytest.mark.parametrize(("solver", "few", "many"), [("analytic", 0.016, 0.004), ("euler", 0.0056, 0.0014)])
def test_a_law_of_two_tokens_is_recovered_with_many_steps(solver, few, many):
    """The error falls like 1 / steps; bounds are a fifth above what was found."""
    errors = [distance(final_law(PAIR, passes_of(solver=solver, steps=steps)), PAIR) for steps in (64, 256)]
    assert errors[0] < few and errors[1] < many
    assert distance(noisy(PAIR, 30.0), PAIR) > 0.4


def test_euler_probabilities_are_never_negative():
    scores = torch.tensor([[0.0, 3.0, 6.0]], dtype=torch.float64).log().nan_to_num(neginf=0.0)  # 1, 3, 6
    small = euler_probabilities(0.1, "log")(scores, torch.tensor([0]))
    torch.testing.assert_close(small, torch.tensor([[0.7, 0.1, 0.2]], dtype=torch.float64))
    large = euler_probabilities(1.0, "log")(scores, torch.tensor([0]))  # one-hot + rate: -2, 1, 2
    torch.testing.assert_close(large, torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64))


def test_categorical_draws_from_the_softmax_of_the_output():
    """For one token that is its law at the step's noise, whatever it was; at the last step, t = 1e-5. No denoising."""
    passes = passes_of(solver="categorical", steps=5, noise=LOUD)
    assert len(passes) == 5
    left = float(sigma_schedule(LOUD).sigma(torch.tensor(LAST_TIME, dtype=torch.float64)))
    assert passes[-1].sigma == pytest.approx(left) and passes[0].sigma == pytest.approx(2.0)
    assert distance(final_law(ONE, passes), noisy(ONE, left)) < 1e-12


@pytest.mark.parametrize("probabilities_of", [euler_probabilities, analytic_probabilities])
def test_a_softmax_score_is_read_as_the_score_itself(probabilities_of):
    x, scores = torch.tensor([1]), torch.tensor([[0.2, 1.0, 0.3]], dtype=torch.float64)
    logits = (scores / 0.5).log().scatter(-1, x[:, None], 0.0)  # softmax: 0.2, 0.5, 0.3
    from_scores = probabilities_of(0.4, "log")(scores.log(), x)
    torch.testing.assert_close(probabilities_of(0.4, "softmax")(logits, x), from_scores)
    assert not torch.allclose(probabilities_of(0.4, "log")(logits, x), from_scores, atol=0.01)


def test_clamped_tokens_stay_and_tokens_between_depend_on_both_sides():
    """The middle token depends on both neighbours, on neither alone; `given` are the outer two.

    Prompts stand in noisy sequences as clean tokens, so this law is near the true one, not equal to it: 0.171 from it
    here, where a token that knew no neighbour, or one, would be 0.65 away.
    """
    passes = passes_of(solver="analytic", steps=128)
    for left, right in ((0, 2), (1, 1)):
        expected = SUM[left, :, right] / SUM[left, :, right].sum()
        found = final_law(SUM, passes, given={0: left, 2: right})[left, :, right]
        assert float(found.sum()) == pytest.approx(1.0)
        assert distance(found, expected) < 0.18 < 0.6 < distance(torch.full((3,), 1 / 3).double(), expected)
