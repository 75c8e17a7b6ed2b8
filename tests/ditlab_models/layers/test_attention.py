"""Attention, plain and gated, and the feed-forward halves of a block."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.layers.attention import GatedAttention, SelfAttention, SwiGLU
from ditlab_models.layers.rope import rotate, rotation


def test_same_as_torchs_own_attention():
    ours = SelfAttention(32, 4).double()
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True).double()
    theirs.in_proj_weight.data.copy_(ours.qkv.weight)
    theirs.in_proj_bias.data.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert_close(ours(x), theirs(x, x, x)[0])


WIDTH, HEADS, KV_HEADS = 32, 8, 2


def attention(gate="headwise"):
    """An attention layer in float64, with different gates for its heads and a temperature."""
    made = GatedAttention(WIDTH, HEADS, KV_HEADS, gate).double()
    torch.nn.init.normal_(made.gate.weight)
    torch.nn.init.constant_(made.temperature, 3.0)
    return made


def written_out(module, x, rope=None, key_mask=None):
    """The attention with keys and values repeated for every query head and an explicit softmax, as
    in its papers.
    """
    num, length, _ = x.shape
    q = module.query(x).view(num, length, HEADS, -1).transpose(1, 2)
    k, v = (
        each(x).view(num, length, KV_HEADS, -1).transpose(1, 2)
        for each in (module.key, module.value)
    )
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    if rope is not None:
        q, k = rotate(q, rope, "neighbours"), rotate(k, rope, "neighbours")
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (k, v))
    scores = q @ k.transpose(-2, -1) * module.temperature
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], float("-inf"))
    mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2)  # (batch, tokens, heads, width of a head)
    gate = torch.sigmoid(x @ module.gate.weight.T).view(num, length, HEADS, -1)
    return module.out((mixed * gate).flatten(2))


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
def test_as_written_out_with_repeated_heads(gate):
    module, x = attention(gate), torch.randn(3, 7, WIDTH).double()
    rope = rotation(torch.arange(7), WIDTH // HEADS, dtype=torch.float64)
    key_mask = torch.rand(3, 7) < 0.6
    key_mask[:, 0] = True
    for args in ((), (rope,), (None, key_mask), (rope, key_mask)):
        assert_close(module(x, *args), written_out(module, x, *args))


def test_half_precision_norms_are_taken_in_float32():
    """A bfloat16 sum of squares would leave norms off by percents."""
    module = GatedAttention(WIDTH, HEADS, KV_HEADS).bfloat16()
    _, k, v = module.heads(torch.randn(2, 5, WIDTH).bfloat16())
    assert k.dtype == v.dtype == torch.bfloat16
    assert (k.float().norm(dim=-1) - 1).abs().max() < 2**-8


def test_one_number():
    """down (SiLU(gate x) up x) with gate 2, up 3, down 5 at x = 0.5: SiLU(1) 1.5 5."""
    mlp = SwiGLU(1, 1).double()
    for layer, value in ((mlp.gate, 2.0), (mlp.up, 3.0), (mlp.down, 5.0)):
        torch.nn.init.constant_(layer.weight, value)
    expected = torch.sigmoid(torch.tensor([1.0]).double()) * 1.5 * 5
    assert_close(mlp(torch.tensor([0.5]).double()), expected)
