"""Properties of every image network of the package."""

import torch
from torch.testing import assert_close


def test_output_has_the_shape_of_the_image(family, small):
    for changes in (
        {},
        {"channels": 3},
        {"image_size": 16},
        {"num_classes": 10},
        {"time_scale": 1000.0},
    ):
        spec = small(**changes)
        x, *rest = family.example_inputs(spec, 3, device="cpu")
        assert family.build_network(spec)(x, *rest).shape == x.shape == (3, *spec.image_shape)


def test_gradient_reaches_every_parameter(family, small, perturb, batch):
    network = family.build_network(small(num_classes=10))
    perturb(network)
    t = torch.linspace(0.1, 0.9, 8)
    label = torch.tensor([0, 1, 2, 3, 4, 5, 9, 10])  # the null class is 10
    network(batch["image"], t, label).square().mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_samples_of_a_batch_are_independent(family, small, perturb, batch):
    network = family.build_network(small()).double()
    perturb(network)
    x, t = batch["image"].double(), torch.linspace(0.1, 0.9, 8).double()
    together = network(x, t)
    alone = torch.cat([network(x[i : i + 1], t[i : i + 1]) for i in range(8)])
    assert_close(together, alone)


def test_time_and_label_matter_and_no_label_is_the_null_class(family, small, perturb, batch):
    network = family.build_network(small(num_classes=10))
    perturb(network, std=0.2)
    x, t = batch["image"], torch.full((8,), 0.5)
    null = torch.full((8,), 10)
    base = network(x, t, null)
    assert torch.equal(network(x, t), base)
    assert not torch.allclose(network(x, t, batch["label"]), base)
    assert not torch.allclose(network(x, t + 0.2, null), base)


def test_autocast_runs(family, small, perturb, batch):
    network = family.build_network(small(num_classes=10))
    perturb(network)
    args = (batch["image"], torch.linspace(0, 1, 8), batch["label"])
    with torch.autocast("cpu", torch.bfloat16):
        half = network(*args)
    assert_close(half.float(), network(*args), rtol=0.1, atol=0.1)


def test_forward_pass_is_one_graph(family, small, batch):
    changes = {"depth": 1} if family.name == "dit" else {}
    network = family.build_network(small(num_classes=10, **changes))
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    args = (batch["image"], torch.linspace(0, 1, 8), batch["label"])
    assert_close(compiled(*args), network(*args))
