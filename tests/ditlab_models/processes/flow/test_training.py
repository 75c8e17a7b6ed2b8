"""The objective of both networks: closed forms, keyed draws, metrics, precision."""

import math

import pytest
import torch

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec
from ditlab_models.processes.draws import batch_means
from ditlab_models.processes.specs import LogitNormalTime, VelocityWeights, quarter_names
from support.models.draws import check_halves, seeded, train


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


def test_a_batch_of_one_micro_batch_is_its_two_halves(family, small, batch, perturb):
    """Given its slice of the draws, a slice of a micro-batch gives its share of the loss."""
    spec = small(num_classes=10)
    network = family.build_network(spec).double()
    objective = family.build_objective(family.objective(), spec)
    perturb(network)

    def measure(rows, source):
        return objective.loss(network, {k: v[rows] for k, v in batch.items()}, source)

    check_halves(measure, 8)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, {"velocity"}),
        ({"direction": 0.5}, {"velocity", "direction"}),
        ({"velocity": 0.0, "direction": 0.5}, {"direction"}),
    ],
)
def test_only_weighted_components_are_computed(family, small, batch, noise, weights, expected):
    objective = family.build_objective(family.objective(weights=weights), small())
    assert set(objective.loss(family.build_network(small()), batch, noise)) == expected
    assert objective.weights == {"velocity": 1.0, "direction": 0.0, **weights}


@pytest.mark.parametrize("classes", [{}, {"num_classes": 10}])
def test_draws_are_named_and_none_is_global(family, small, batch, noise, classes):
    spec = small(**classes)
    network = family.build_network(spec)
    objective = family.build_objective(family.objective(), spec)
    state = torch.get_rng_state()
    objective.loss(network, batch, noise)
    assert sorted(noise.names) == ["label_dropout"] * len(classes) + ["noise", "time"]
    objective.metrics(network, batch, noise)
    assert torch.equal(torch.get_rng_state(), state)


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


def test_metrics_do_not_depend_on_weights_or_training_times(
    family, small, batch, perturb, keyed_noise
):
    network = family.build_network(small())
    perturb(network)
    plain = family.build_objective(family.objective(), small())
    other = family.build_objective(
        family.objective(
            time=LogitNormalTime(mean=2.0), weights=VelocityWeights(velocity=1e-3, direction=1.0)
        ),
        small(),
    )
    first = batch_means(plain.metrics(network, batch, keyed_noise()))
    assert set(first) == {"velocity", "direction", *quarter_names("velocity")}
    second = batch_means(other.metrics(network, batch, keyed_noise()))
    assert all(first[name] == second[name] for name in first)
    quarters = [first[f"velocity_t{quarter}"] for quarter in range(4)]
    assert first["velocity"] == pytest.approx(sum(quarters) / 4, rel=1e-5)
    by_sample = plain.metrics(network, batch, keyed_noise())
    assert all(
        value.shape == (len(batch["image"]),) and not value.requires_grad
        for value in by_sample.values()
    )


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_parameter_precision_trains_with_a_loss_of_full_precision(
    family, small, batch, perturb, noise, dtype
):
    spec = small(num_classes=10)
    network = family.build_network(spec)
    perturb(network)
    objective = family.build_objective(
        family.objective(weights=VelocityWeights(direction=0.1)), spec
    )
    expected = objective.loss(network, batch, noise)
    network.to(dtype)
    got = objective.loss(network, batch, noise)
    sum(got.values()).backward()
    for name, value in got.items():
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert value.item() == pytest.approx(expected[name].item(), rel=0.03)
    gradients = [each.grad for each in network.parameters() if each.grad is not None]
    assert all(each.isfinite().all() for each in gradients)


def test_a_few_steps_learn(family, small, batch, keyed_noise):
    network, objective = (
        family.build_network(small()),
        family.build_objective(family.objective(), small()),
    )
    before = batch_means(objective.metrics(network, batch, keyed_noise(99)))["velocity"]
    train(network, objective, batch, keyed_noise, steps=40, rate=3e-3)
    assert (
        batch_means(objective.metrics(network, batch, keyed_noise(99)))["velocity"] < 0.8 * before
    )
