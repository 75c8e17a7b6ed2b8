"""Operators of a profiled step are found, each once, with the sizes of their products."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step.family_step import Training
from benchmarks.step.operator_limits import limits, profile_steps

ROWS, HEADS = 6, 2


class Small(nn.Module):
    """Attention and a convolution between two products."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 24), nn.Linear(8, 5)
        self.convolution = nn.Conv2d(2, 3, 3)
        self.images = torch.randn(2, 2, 5, 5, requires_grad=True)

    def forward(self, x):
        q, k, v = self.first(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(mixed).sum() + self.convolution(self.images).sum()


@pytest.mark.slow
def test_products_attention_and_convolutions_of_a_step():
    network = Small()
    x = torch.randn(2, ROWS, 4, requires_grad=True)

    def step():
        loss = network(x)
        loss.backward()
        return loss.item()

    with FlopCounterMode(display=False) as counter:
        step()
    counts = {
        operator.__name__.split(".")[0]: num
        for operator, num in counter.get_flop_counts()["Global"].items()
    }
    weights = {tuple(each.shape) for each in network.parameters() if each.ndim == 2}
    training = Training(network, step, 0)
    found = profile_steps(training, weights, 1)
    flops = sum(
        2 * each.batch * each.rows * each.inner * each.columns * num
        for (each, _), num in found.products.items()
    )
    assert flops == counts["addmm"] + counts["mm"]
    gradients = {
        tuple(sorted((each.rows, each.columns)))
        for each, is_gradient in found.products
        if is_gradient
    }
    assert gradients == {(4, 24), (5, 8)}
    kernels = {
        (name.endswith("backward"), queries, keys) for name, queries, keys in found.attention
    }
    shape = (2, HEADS, ROWS, 4)
    assert kernels == {(False, shape, shape), (True, shape, shape)}
    assert found.seconds["convolutions"] > 0
    least = limits(found, training)
    assert least.keys() == found.seconds.keys()
    assert all(
        least[name] > 0
        for name in ("products", "weight gradients", "attention", "convolutions", "optimiser")
    )
