"""Modulated norms."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from ditlab_models.layers.adaln import AdaLN


def test_scale_then_shift_without_silu():
    adaln = AdaLN(8, 16)
    x, condition = torch.randn(2, 5, 8), torch.randn(2, 16)
    scale, shift = adaln.modulation(condition).split(8, dim=-1)
    expected = functional.layer_norm(x, (8,)) * (1 + scale[:, None]) + shift[:, None]
    assert_close(adaln(x, condition), expected)
