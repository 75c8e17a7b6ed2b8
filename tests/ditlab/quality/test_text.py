"""Drawn text: figures by hand, intervals of ratios, refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ditlab.data.splits import open_data
from ditlab.quality import check_quality
from ditlab.quality.text import TextQuality
from ditlab_models.contract import Samples
from ditlab_models.intervals import Estimate, ratio_estimate
from support.chain import chain_experiment as experiment
from support.damage import refused
from support.trainings.family_specs import smallest

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def chain(home):
    return open_data(experiment().data, home)


def test_figures_of_few_tokens_by_hand(chain, home):
    quality = TextQuality(experiment(), chain, home, CPU)
    found = quality.measure(Samples(torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]), {}))
    assert found["quality/token_entropy"] == pytest.approx(math.log(2) / 2)
    shares = [found[f"quality/distinct_{n}"] for n in (1, 2, 3)]
    assert shares == [2 / 8, 3 / 6, 3 / 4]  # 0 1; 00 01 11; 001 011 000
    assert "quality/generative_perplexity" not in found


def test_a_ratio_of_sums_is_that_of_means_where_bottoms_are_equal():
    """Four values: t of 3 degrees times the standard error; one value says nothing of others."""
    found = ratio_estimate(np.array([2.0, 4.0, 6.0, 8.0]), np.full(4, 2.0))
    half = 3.182446305 * math.sqrt(5 / 3) / 2
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half, 3), rel=1e-3)
    one = ratio_estimate(np.array([1.0]), np.array([2.0]))
    assert one.named("x") == {"x": 0.5} and list(one.exp().named("x")) == ["x"]
    assert Estimate(0.0, -1.0, 1.0).exp().named("p") == pytest.approx(
        {"p": 1, "p_low": 1 / math.e, "p_high": math.e}
    )


def test_too_little_text_and_a_scorer_of_pictures_are_refused(chain):
    few = replace(chain, held_out=chain.held_out.first(19))
    with refused("holds out 19 samples of text, and at least 20 are needed"):
        check_quality(experiment(), few)
    with refused(r"used by nothing, as model\.family=dit draws no text"):
        check_quality(
            smallest("dit", evaluation__quality=100, evaluation__scorer={"model": "x"}), chain
        )
