"""The objective of both networks: a closed form, dropped labels, times of metrics."""

import math

import pytest
import torch

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec
from ditlab_models.processes.draws import batch_means
from support.models.draws import Answering, KeyedNoise, seeded


def test_untrained_loss_is_one_plus_the_datas_second_moment():
    """DiT predicts 0 at first, so its loss is E[(x1 - x0)^2] = 1 + E[x0^2]."""
    spec = DiTSpec(image_size=8, patch_size=2, width=8, depth=1, num_heads=1)
    network, objective = (
        FAMILY.build_network(spec),
        FAMILY.build_objective(DiTObjectiveSpec(), spec),
    )
    image = 0.5 + 0.7 * torch.randn(4096, 1, 8, 8, generator=seeded(3))
    (loss,) = objective.loss(network, {"image": image}, KeyedNoise()).values()
    assert loss.item() == pytest.approx(1 + image.square().mean().item(), rel=0.01)


def test_labels_drop_at_their_rate_and_by_key(family, small):
    spec = small(num_classes=10, label_dropout=0.3, image_size=4)
    objective = family.build_objective(family.objective(), spec)
    label = torch.arange(20_000) % 10
    batch = {"image": torch.zeros(20_000, 1, 4, 4), "label": label}
    network = Answering(lambda x, t, label: torch.zeros_like(x))

    def seen():
        return network.calls[-1][2]

    objective.loss(network, batch, KeyedNoise(0))
    first = seen()
    dropped = first == 10
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.015)
    assert torch.equal(first[~dropped], label[~dropped])
    objective.loss(network, batch, KeyedNoise(0))
    assert torch.equal(seen(), first)
    objective.loss(network, batch, KeyedNoise(1))
    assert not torch.equal(seen(), first)
    objective.metrics(network, batch, KeyedNoise(0))
    assert torch.equal(seen(), label)


def test_metrics_look_at_each_quarter_of_time(family, small):
    """Also of one image."""
    network = Answering(lambda x, t: torch.zeros_like(x))
    objective = family.build_objective(family.objective(), small())
    batch = {"image": torch.zeros(1, 1, 8, 8)}
    metrics = batch_means(objective.metrics(network, batch, KeyedNoise()))
    assert all(math.isfinite(value) for value in metrics.values())
    assert [int(4 * t) for _, t in network.calls] == [0, 1, 2, 3]
