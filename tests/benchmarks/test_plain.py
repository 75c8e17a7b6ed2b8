"""Each plain network has as many parameters as ours, and as many operations; its training learns."""

from pathlib import Path

import pytest
import torch

from benchmarks.plain.dit import flow_matching_loss
from benchmarks.plain.networks import plain_network
from benchmarks.plain.training import PlainTraining
from ditlab.spec.loading import load_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", ["mnist/dit", "mnist/unet", "digits/dit"])
def test_parameters_equal_ours(name):
    experiment = load_experiment(EXPERIMENTS / f"{name}.yaml", [])
    with torch.device("meta"):
        ours, plain = experiment.family.build_network(experiment.model), plain_network(experiment.model)
        x, t = torch.empty(2, 1, experiment.model.image_size, experiment.model.image_size), torch.empty(2)
        assert plain(x, t).shape == ours(x, t).shape == x.shape
    assert sum(each.numel() for each in plain.parameters()) == sum(each.numel() for each in ours.parameters())


def test_a_plain_step_learns_clips_and_averages():
    torch.manual_seed(0)
    experiment = load_experiment(EXPERIMENTS / "digits/dit.yaml", ["model.width=32", "model.depth=1"])
    network = plain_network(experiment.model)
    images = torch.ones(16, 1, 8, 8)
    training = PlainTraining(
        network, lambda: flow_matching_loss(network, images), lr=1e-2, weight_decay=0.0, max_norm=1.0, ema_decay=0.5
    )
    before = training.average[0].clone()
    losses = [training.step() for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(before, training.average[0])
    assert not torch.equal(training.average[0], next(network.parameters()))
