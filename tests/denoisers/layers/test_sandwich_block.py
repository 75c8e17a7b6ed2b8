"""Blocks with a norm on both sides of their branches."""

import torch

from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.sandwich_block import SandwichBlock, SixWayAdaLN
from denoisers.layers.swiglu import SwiGLU

WIDTH, CONDITION = 16, 24


def rms(x, weight):
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight


def test_block_as_written(perturb):
    block = SandwichBlock(GatedAttention(WIDTH, 4, 2), SwiGLU(WIDTH, 32), WIDTH, CONDITION, 1e-6).double()
    perturb(block, std=0.3)
    x, condition = torch.randn(3, 5, WIDTH).double(), torch.randn(3, CONDITION).double()
    six = block.adaln.linear(condition * torch.sigmoid(condition))[:, None]
    gamma1, beta1, alpha1, gamma2, beta2, alpha2 = six.chunk(6, dim=-1)
    h = gamma1 * rms(x, block.attention_norm.weight) + beta1
    expected = x + alpha1 * rms(block.attention(h), block.attention_post_norm.weight)
    h = gamma2 * rms(expected, block.mlp_norm.weight) + beta2
    expected = expected + alpha2 * rms(block.mlp(h), block.mlp_post_norm.weight)
    torch.testing.assert_close(block(x, condition), expected)


def test_modulation_starts_at_its_biases_where_the_condition_says_nothing():
    for gamma in (1.0, 1e-4):
        adaln = SixWayAdaLN(CONDITION, WIDTH, gamma)
        torch.nn.init.zeros_(adaln.linear.bias)
        adaln.initialise()
        for branch in adaln(torch.zeros(2, CONDITION)):
            for values, start in zip(branch, (gamma, 0.0, 1.0), strict=True):
                assert torch.equal(values, torch.full((2, WIDTH), start))
