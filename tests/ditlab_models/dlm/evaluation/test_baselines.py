"""Unigram and bigram: counts by hand, sources whose entropy is known, distributions that sum to
1.
"""

import math

import numpy as np
import pytest
import torch

from ditlab_models.contract import Samples
from ditlab_models.dlm import evaluation
from ditlab_models.dlm.evaluation import fit_baselines, nats_per_token
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMObjectiveSpec, DLMSpec
from support.models.draws import seeded
from support.models.token_rows import token_rows


def fit(tokens, vocabulary, size=64):
    return fit_baselines(token_rows(torch.as_tensor(tokens)), vocabulary, size)


def nats(fitted, tokens, size=64):
    return nats_per_token(fitted, token_rows(torch.as_tensor(tokens)), size)


def distribution_after(fitted, context, vocabulary):
    """The bigram's distribution after a token, (V,)."""
    rows = np.stack([np.full(vocabulary, context), np.arange(vocabulary)], 1)
    return np.exp(fitted.log_probabilities(rows)[:, 1])


def chain(num, length, vocabulary, seed):
    """Rows of a Markov chain that mostly goes on to 3 x + 1, never to tokens beyond the first two
    thirds.
    """
    generator = np.random.default_rng(seed)
    rows = np.zeros((num, length), np.int64)
    used = 2 * vocabulary // 3
    rows[:, 0] = generator.integers(used, size=num)
    for place in range(1, length):
        goes_on = generator.random(num) < 0.7
        rows[:, place] = np.where(
            goes_on, (3 * rows[:, place - 1] + 1) % used, generator.integers(used, size=num)
        )
    return rows


def test_counts_of_five_tokens_by_hand():
    """0 1 0 1 2, V = 4. Tokens 2, 2, 1, 0 times, 3 different: (c + 3/4) / (5 + 3). Pairs: 01 twice,
    10 and 12 once; n1 = 2, n2 = 1, so a pair that came once loses 2 / (2 + 2 * 1) = 1/2; of n3
    there is none, so one that came twice loses half of 2. Pairs end in 0, 1 and 2, one each: lower
    orders get (1 + 3/4) / (3 + 3), and 3 gets (3/4) / 6."""
    fitted = fit([[0, 1, 0, 1, 2]], 4)
    lower = np.array([1.75, 1.75, 1.75, 0.75]) / 6
    assert fitted.unigram == pytest.approx(np.array([2.75, 2.75, 1.75, 0.75]) / 8)
    assert distribution_after(fitted, 0, 4) == pytest.approx([0, 0.5, 0, 0] + 0.5 * lower)
    assert distribution_after(fitted, 1, 4) == pytest.approx([0.25, 0, 0.25, 0] + 0.5 * lower)
    assert distribution_after(fitted, 2, 4) == pytest.approx(lower)
    found = nats(fitted, [[1, 0], [2, 3]])
    assert found["unigram"] == pytest.approx(-np.log(np.array([2.75, 2.75, 1.75, 0.75]) / 8).mean())
    behind = 0.25 + 0.5 * 1.75 / 6
    first = (2.75 / 8) * (1.75 / 8)  # a row's first token is the unigram's
    assert found["bigram"] == pytest.approx(-math.log(first * behind * 0.75 / 6) / 4)


@pytest.mark.parametrize("num", [1, 4, 300])
def test_distributions_sum_to_1_and_leave_no_token_out(num):
    fitted = fit(chain(num, 20, 30, 0), 30)
    assert fitted.unigram.sum() == pytest.approx(1) and fitted.unigram.min() > 0
    for context in range(30):
        behind = distribution_after(fitted, context, 30)
        assert behind.sum() == pytest.approx(1) and behind.min() > 0


def test_the_bigram_of_a_chain_approaches_its_entropy():
    """0.7 + 0.3 / 20 for one token, 0.3 / 20 for the 19 others; the first token is uniform over
    20.
    """
    rows = chain(4000, 40, 30, 1)
    found = nats(fit(rows[:3500], 30), rows[3500:])
    likely, other = 0.7 + 0.3 / 20, 0.3 / 20
    entropy = (math.log(20) - 39 * (likely * math.log(likely) + 19 * other * math.log(other))) / 40
    assert entropy - 0.02 < found["bigram"] < entropy + 0.02
    assert found["bigram"] < found["unigram"] - 0.5


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("waiting", [1, 50, 2**22])
def test_neither_batches_nor_merges_change_anything(size, waiting, monkeypatch):
    rows, held_out = chain(60, 12, 50, 2), chain(20, 12, 50, 3)
    one = fit(rows, 50)
    monkeypatch.setattr(evaluation, "BUFFERED_PAIRS", waiting)
    other = fit(rows, 50, size)
    assert np.array_equal(one.unigram, other.unigram)
    for name in ("codes", "pair_probabilities", "backoff"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert nats(other, held_out, size) == pytest.approx(nats(one, held_out), rel=1e-12)


def test_a_vocabulary_of_gpt2_needs_no_matrix():
    rows = 50000 + torch.arange(40).view(2, 20) % 7
    rows[:, ::5] = torch.randint(50257, (2, 4), generator=seeded())
    fitted = fit(rows, 50257)
    assert len(fitted.codes) <= 2 * 19 + 1
    assert distribution_after(fitted, 50003, 50257).sum() == pytest.approx(1)
    assert nats(fitted, rows)["bigram"] < nats(fitted, rows)["unigram"]


def test_rows_of_one_token_are_the_unigrams():
    rows = [[0], [0], [1]]
    found = nats(fit(rows, 3), rows)
    assert found["bigram"] == found["unigram"] < math.log(3)


def test_samples_are_measured_under_the_bigram_of_the_training_text():
    """Text of the chain has the perplexity of held-out text; uniform tokens a higher one; one token
    over and over no entropy."""
    evaluator = FAMILY.build_evaluator(DLMObjectiveSpec(), DLMSpec(length=64, vocabulary=30))
    rows = [
        token_rows(torch.as_tensor(chain(num, 64, 30, seed))) for num, seed in ((200, 0), (60, 1))
    ]
    measure = evaluator.measure_samples(*rows, 32)

    def of(tokens):
        return measure(Samples(torch.as_tensor(tokens), {}))

    like, uniform, same = (
        of(chain(60, 64, 30, 2)),
        of(np.random.default_rng(0).integers(30, size=(60, 64))),
        of([[3] * 64]),
    )
    assert tuple(like) == evaluator.sample_metrics
    assert like["bigram_perplexity"] == pytest.approx(like["bigram_perplexity_held_out"], rel=0.05)
    assert like["token_entropy"] == pytest.approx(like["token_entropy_held_out"], rel=0.02)
    assert (
        uniform["bigram_perplexity"] > 3 * like["bigram_perplexity"] and same["token_entropy"] == 0
    )
