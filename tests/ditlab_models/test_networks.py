"""Properties of every image network of the package."""

import torch


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


def test_time_and_label_matter_and_no_label_is_the_null_class(family, small, perturb, batch):
    network = family.build_network(small(num_classes=10))
    perturb(network, std=0.2)
    x, t = batch["image"], torch.full((8,), 0.5)
    null = torch.full((8,), 10)
    base = network(x, t, null)
    assert torch.equal(network(x, t), base)
    assert not torch.allclose(network(x, t, batch["label"]), base)
    assert not torch.allclose(network(x, t + 0.2, null), base)
