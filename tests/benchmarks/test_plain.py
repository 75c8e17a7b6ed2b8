"""Each plain network has as many parameters as ours; its training learns."""

import math
from pathlib import Path

import torch

from benchmarks.plain.dit import flow_matching_loss
from benchmarks.plain.dlm import HandDLM, score_entropy_loss
from benchmarks.plain.networks import plain_network
from benchmarks.plain.training import PlainTraining
from ditlab.spec.files import load_experiment
from support.models.plain_score_entropy import score_entropy

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_the_hand_written_score_entropy_is_ours():
    torch.manual_seed(0)
    network = HandDLM(
        vocabulary=11, width=16, depth=1, num_heads=2, mlp_width=32, condition_width=8, time_width=8
    )
    with torch.no_grad():
        network.head.weight.normal_()
    x0 = torch.randint(11, (4, 6))
    seen = {}
    network.register_forward_hook(
        lambda _, inputs, output: seen.update(inputs=inputs, output=output)
    )
    loss = score_entropy_loss(network, x0, 0.1, 5.0)
    x, sigma = seen["inputs"]
    by_token = (
        score_entropy(seen["output"], x, x0, sigma[:, None]) * sigma[:, None] * math.log(50.0)
    )
    torch.testing.assert_close(loss, by_token.mean())


def test_a_plain_step_learns_clips_and_averages():
    torch.manual_seed(0)
    experiment = load_experiment(
        EXPERIMENTS / "digits/dit.yaml", ["model.width=32", "model.depth=1"]
    )
    network = plain_network(experiment.model)
    images = torch.ones(16, 1, 8, 8)
    training = PlainTraining(
        network,
        lambda: flow_matching_loss(network, images),
        lr=1e-2,
        weight_decay=0.0,
        max_norm=1.0,
        ema_decay=0.5,
    )
    before = training.average[0].clone()
    losses = [training.step() for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
    assert not torch.equal(before, training.average[0])
    assert not torch.equal(training.average[0], next(network.parameters()))
