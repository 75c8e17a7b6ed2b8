"""Properties of every image network of the package."""

import torch

from support.models.draws import perturb


def test_time_and_label_matter_and_no_label_is_the_null_class(family, small):
    network = perturb(family.build_network(small(num_classes=10)), std=0.2)
    x, t = torch.randn(8, 1, 8, 8), torch.full((8,), 0.5)
    null = torch.full((8,), 10)
    base = network(x, t, null)
    assert torch.equal(network(x, t), base)
    assert not torch.allclose(network(x, t, torch.arange(8)), base)
    assert not torch.allclose(network(x, t + 0.2, null), base)
