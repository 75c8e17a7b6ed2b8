"""Adaptive layer norm in both forms."""

import torch
from torch.nn import functional

from denoisers.layers.adaln import AdaLN, AdaLNZero


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
