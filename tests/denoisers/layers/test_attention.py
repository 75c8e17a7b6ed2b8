"""Self-attention, and its weights for figures."""

import torch

from denoisers.layers.attention import SelfAttention


def test_shown_weights_are_those_of_the_forward_pass():
    attention = SelfAttention(32, 4).double()
    x = torch.randn(3, 7, 32, dtype=torch.float64)
    weights = attention.attention_weights(x)
    assert weights.shape == (3, 4, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 7, dtype=torch.float64))
    _, _, v = attention.heads(x)
    torch.testing.assert_close(attention.out((weights @ v).transpose(1, 2).flatten(2)), attention(x))


def test_same_as_torchs_own_attention():
    ours = SelfAttention(32, 4).double()
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True).double()
    theirs.in_proj_weight.data.copy_(ours.qkv.weight)
    theirs.in_proj_bias.data.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    expected, weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x), expected)
    torch.testing.assert_close(ours.attention_weights(x), weights)
