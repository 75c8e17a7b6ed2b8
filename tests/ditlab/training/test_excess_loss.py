"""Excess loss of held-out samples of data whose optimum is known, from the data's spec to the
metric's name.
"""

import numpy as np
import pytest
import torch
from torch import nn

from ditlab.data.analytic_targets import chain_of, mixture_of
from ditlab.data.splits import open_data
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.data import GaussianMixtureData, MarkovChainData
from ditlab.spec.files import build_experiment
from ditlab.training.evaluation import metrics_by_part
from ditlab.training.metrics import metric_names
from ditlab_models.processes.score_entropy import TokenLosses
from support.models.plain_score_entropy import score_entropy

CPU = torch.device("cpu")
SMALL = {"width": 16, "depth": 1, "num_heads": 2}
REGION = {"family": "region", "num_regions": 8, "time_width": 8, **SMALL}
MOTIFS = {
    "kind": "motifs",
    "motifs": 3,
    "chromosomes": 4,
    "peaks": 400,
    "regions": 8,
    "domains": 3,
    "programs": 2,
}
CHAIN = {"kind": "markov_chain", "num": 4000, "length": 12, "states": 5, "hold_out": 0.5}
DLM = {"family": "dlm", "length": 12, "vocabulary": 5, **SMALL}
NOISE = {"noise": {"sigma_min": 1e-4, "sigma_max": 20.0}}


def measured(home, network=None, **spec):
    """Held-out metrics of a network (None: untrained); a sweep may name the excess loss where there
    is one.
    """
    experiment = build_experiment({"name": "known", "training": {"steps": 1}, **spec}, "known")
    data, rank = open_data(experiment.data, Home(home)), Rank(0, 1, 0, CPU)
    objective = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
    network = network or experiment.family.build_network(experiment.model)
    inputs = ModelInputs(experiment.batch_fields(), data.train.columns, CPU)
    with torch.no_grad():
        found = metrics_by_part(
            network, objective, experiment, data, inputs, 500, 2000, rank, ControlChannel(rank)
        )
    assert ("eval/excess_loss" in metric_names(experiment, data, objective)) == (
        "excess_loss" in found
    )
    return found


class PosteriorMeans(nn.Module):
    """Clean points that the law expects, `by` too large."""

    def __init__(self, spec, schedule, by):
        super().__init__()
        self.law, self.signal = mixture_of(spec), schedule.sqrt()
        self.by = nn.Parameter(torch.tensor(by))

    def forward(self, x, mask, t, present, index):
        signal = self.signal[t][:, None, None]
        best = self.law.expectations(x, signal, (1 - signal**2).sqrt())[0] + self.by
        return best.gather(1, index[..., None].expand(-1, -1, best.shape[-1]))


def test_points_under_the_gaussian_process(tmp_path):
    data = {"kind": "gaussian_mixture", "num": 4000, "regions": 8, "hold_out": 0.5}
    model = {**REGION, "num_features": 2, "corruption": "ddpm"}
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    schedule = (1 - betas).cumprod(0)
    networks = [PosteriorMeans(GaussianMixtureData(**data), schedule, by) for by in (0.2, 0.0)]
    perturbed, best = (measured(tmp_path, each, model=model, data=data) for each in networks)
    # windows without a masked region count as 0
    assert perturbed["excess_loss"] == pytest.approx(0.04 * (1 - 0.5**8), rel=2e-3)
    assert best["excess_loss"] < 1e-9
    # 3 standard errors
    assert perturbed["masked"] - best["masked"] == pytest.approx(perturbed["excess_loss"], rel=0.08)


class TrueScores(nn.Module):
    """The chain's log scores, or their losses."""

    def __init__(self, spec):
        super().__init__()
        self.law = chain_of(spec)

    def forward(self, x, sigma, targets=None, documents=None):
        scores = self.law.log_scores(x, sigma)
        if targets is None:
            return scores
        losses = score_entropy(scores, x, targets.x0, targets.sigma.double())
        return TokenLosses((losses * targets.weight).sum(), losses)


def test_tokens_of_a_chain_whose_least_bound_is_their_entropy(tmp_path):
    spec = MarkovChainData(**CHAIN)
    found = measured(tmp_path, TrueScores(spec), model=DLM, data=CHAIN, objective=NOISE)
    law = chain_of(spec)
    np.testing.assert_allclose(law.initial @ law.transition, law.initial, atol=1e-12)
    rate = -(law.initial[:, None] * law.transition * np.log(law.transition)).sum()
    entropy = (11 * rate - law.initial @ np.log(law.initial)) / 12
    assert found["excess_loss"] == pytest.approx(0, abs=1e-12)
    assert found["bound"] == pytest.approx(entropy, rel=0.02)
    untrained = measured(tmp_path, model=DLM, data=CHAIN, objective=NOISE)
    difference = untrained["score_entropy"] - found["score_entropy"]
    assert untrained["excess_loss"] == pytest.approx(difference, rel=0.03) and difference > 0.3


def test_planted_modules(tmp_path):
    found = measured(
        tmp_path, model={**REGION, "num_features": 4, "positions": "sinusoidal"}, data=MOTIFS
    )
    assert 0 < found["excess_loss"] < found["masked"]
    ddpm = {**REGION, "num_features": 4, "corruption": "ddpm"}
    assert "excess_loss" not in measured(tmp_path, model=ddpm, data=MOTIFS)  # no closed form
