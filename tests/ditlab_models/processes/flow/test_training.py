"""The objective of both networks: a closed form, dropped labels, times of metrics."""

import math

import pytest
import torch

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec
from ditlab_models.processes.draws import batch_means
from support.models.draws import seeded


def test_untrained_loss_is_one_plus_the_datas_second_moment(keyed_noise):
    """DiT predicts 0 at first, so its loss is E[(x1 - x0)^2] = 1 + E[x0^2]."""
    spec = DiTSpec(image_size=8, patch_size=2, width=8, depth=1, num_heads=1)
    network, objective = (
        FAMILY.build_network(spec),
        FAMILY.build_objective(DiTObjectiveSpec(), spec),
    )
    image = 0.5 + 0.7 * torch.randn(4096, 1, 8, 8, generator=seeded(3))
    (loss,) = objective.loss(network, {"image": image}, keyed_noise()).values()
    assert loss.item() == pytest.approx(1 + image.square().mean().item(), rel=0.01)


class SeesLabels(torch.nn.Module):
    """A network that records its labels and predicts 0."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(()))
        self.labels = torch.empty(0)

    def forward(self, x, t, label):
        self.labels = label
        return torch.zeros_like(x) + self.anchor


def test_labels_drop_at_their_rate_and_by_key(family, small, keyed_noise):
    spec = small(num_classes=10, label_dropout=0.3, image_size=4)
    objective = family.build_objective(family.objective(), spec)
    label = torch.arange(20_000) % 10
    batch = {"image": torch.zeros(20_000, 1, 4, 4), "label": label}
    network = SeesLabels()
    objective.loss(network, batch, keyed_noise(0))
    first = network.labels
    dropped = first == 10
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.015)
    assert torch.equal(first[~dropped], label[~dropped])
    objective.loss(network, batch, keyed_noise(0))
    assert torch.equal(network.labels, first)
    objective.loss(network, batch, keyed_noise(1))
    assert not torch.equal(network.labels, first)
    objective.metrics(network, batch, keyed_noise(0))
    assert torch.equal(network.labels, label)


def test_metrics_look_at_each_quarter_of_time(family, small, keyed_noise):
    """Also of one image."""
    times = []

    class TimeTeller(torch.nn.Linear):
        def forward(self, x, t):
            times.append(t)
            return torch.zeros_like(x)

    objective = family.build_objective(family.objective(), small())
    batch = {"image": torch.zeros(1, 1, 8, 8)}
    metrics = batch_means(objective.metrics(TimeTeller(1, 1), batch, keyed_noise()))
    assert all(math.isfinite(value) for value in metrics.values())
    assert [int(4 * t) for t in times] == [0, 1, 2, 3]
