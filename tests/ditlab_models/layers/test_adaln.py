"""Modulated norms, and the sandwich block."""

import torch
from torch.nn import functional

from ditlab_models.layers.adaln import AdaLN, AdaLNZero, SandwichBlock, SixWayAdaLN
from ditlab_models.layers.attention import GatedAttention, SwiGLU


def test_scale_then_shift_without_silu():
    adaln = AdaLN(8, 16)
    x, condition = torch.randn(2, 5, 8), torch.randn(2, 16)
    scale, shift = adaln.modulation(condition).split(8, dim=-1)
    expected = functional.layer_norm(x, (8,)) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(adaln(x, condition), expected)


def test_zero_starts_with_closed_gates():
    for modulation in AdaLNZero(8, 16)(torch.randn(2, 16)):
        assert all(torch.equal(part, torch.zeros(2, 8)) for part in modulation)


def test_zero_reads_shift_scale_gate_in_the_published_order():
    adaln = AdaLNZero(4, 8)
    adaln.modulation.bias.data = torch.arange(24.0)
    attention, mlp = adaln(torch.zeros(1, 8))
    starts = [attention.shift, attention.scale, attention.gate, mlp.shift, mlp.scale, mlp.gate]
    assert [part[0, 0].item() for part in starts] == [0, 4, 8, 12, 16, 20]


WIDTH = 16


def rms(x, weight):
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight


def test_block_as_written(perturb):
    block = SandwichBlock(GatedAttention(WIDTH, 4, 2), SwiGLU(WIDTH, 32), WIDTH, 1e-6).double()
    perturb(block, std=0.3)
    x, condition = torch.randn(3, 5, WIDTH).double(), torch.randn(3, WIDTH).double()
    six = block.adaln.linear(condition * torch.sigmoid(condition))[:, None]
    scale1, shift1, gate1, scale2, shift2, gate2 = six.chunk(6, dim=-1)
    h = scale1 * rms(x, block.attention_norm.weight) + shift1
    expected = x + gate1 * rms(block.attention(h), block.attention_post_norm.weight)
    h = scale2 * rms(expected, block.mlp_norm.weight) + shift2
    expected = expected + gate2 * rms(block.mlp(h), block.mlp_post_norm.weight)
    torch.testing.assert_close(block(x, condition), expected)


def test_modulation_of_a_zero_condition_is_its_biases():
    for initial_scale in (1.0, 1e-4):
        adaln = SixWayAdaLN(WIDTH, initial_scale)
        torch.nn.init.zeros_(adaln.linear.bias)
        adaln.initialise()
        for branch in adaln(torch.zeros(2, WIDTH)):
            for values, start in zip(branch, (initial_scale, 0.0, 1.0), strict=True):
                assert torch.equal(values, torch.full((2, WIDTH), start))
