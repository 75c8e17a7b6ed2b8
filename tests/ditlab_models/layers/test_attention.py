"""Attention, plain and gated."""

import torch
from torch.testing import assert_close

from ditlab_models.layers.attention import GatedAttention, SelfAttention


def test_same_as_torchs_own_attention():
    ours = SelfAttention(32, 4).double()
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True).double()
    theirs.in_proj_weight.data.copy_(ours.qkv.weight)
    theirs.in_proj_bias.data.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert_close(ours(x), theirs(x, x, x)[0])


WIDTH, HEADS, KV_HEADS = 32, 8, 2


def test_half_precision_norms_are_taken_in_float32():
    """A bfloat16 sum of squares would leave norms off by percents."""
    module = GatedAttention(WIDTH, HEADS, KV_HEADS).bfloat16()
    _, k, v = module.heads(torch.randn(2, 5, WIDTH).bfloat16())
    assert k.dtype == v.dtype == torch.bfloat16
    assert (k.float().norm(dim=-1) - 1).abs().max() < 2**-8
