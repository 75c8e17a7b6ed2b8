"""The block of the language model: rotary attention and SwiGLU, each modulated and gated by the noise level.

B batch, T tokens, D width, C width of the condition, H heads. A sequence is N segments of T / N tokens, each with a
condition of its own: N = 1 is a condition by sample, N = T one by token.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.adaln import Modulation
from denoisers.layers.kv_cache import LayerCache
from denoisers.layers.rope import Rotation, rotate
from denoisers.layers.swiglu import SwiGLU

NORM_EPS = 1e-6


def modulate(x: Tensor, by: Modulation) -> Tensor:
    """x (1 + scale) + shift, by segment: x (B, T, D), scale and shift (B, N, D) -> (B, T, D)."""
    segments = x.unflatten(1, (by.scale.shape[1], -1))
    return (segments * (1 + by.scale[:, :, None]) + by.shift[:, :, None]).flatten(1, 2)


def add_gated(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """x + gate branch, by segment: x and branch (B, T, D), gate (B, N, D) -> (B, T, D)."""
    return x + (branch.unflatten(1, (gate.shape[1], -1)) * gate[:, :, None]).flatten(1, 2)


def zero_linear(inputs: int, outputs: int) -> nn.Linear:
    """A Linear whose weight and bias start at 0."""
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class RotaryAttention(nn.Module):
    """Self-attention without biases; queries and keys, never values, are turned by their positions."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, by: Rotation, mask: Tensor | None = None, cache: LayerCache | None = None) -> Tensor:
        """x (B, T, D) -> the same shape; mask (T, T), or (T, cached + T) with a cache, is true where a token sees."""
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        q, k = rotate(q, by), rotate(k, by)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, T, D / H)
        return self.out(mixed.transpose(1, 2).flatten(2))


class DLMBlock(nn.Module):
    """x + gate attention(modulated norm), then x + gate SwiGLU(modulated norm): the identity until it is trained."""

    def __init__(self, width: int, num_heads: int, mlp_width: int, condition_width: int) -> None:
        super().__init__()
        self.modulation = zero_linear(condition_width, 6 * width)
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.attention = RotaryAttention(width, num_heads)
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.mlp = SwiGLU(width, mlp_width)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        by: Rotation,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, D), condition (B, N, C) -> (B, T, D). Adds keys and values to the cache, uncommitted."""
        before_attention, before_mlp = self.modulations(condition)
        assert before_attention.gate is not None and before_mlp.gate is not None
        branch = self.attention(modulate(self.attention_norm(x), before_attention), by, mask, cache)
        x = add_gated(x, branch, before_attention.gate)
        branch = self.mlp(modulate(self.mlp_norm(x), before_mlp))
        return add_gated(x, branch, before_mlp.gate)

    def modulations(self, condition: Tensor) -> tuple[Modulation, Modulation]:
        """What (B, N, C) does before attention and before the MLP, each (B, N, D); no SiLU here."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition).chunk(6, dim=-1)
        return Modulation(scale, shift, gate), Modulation(mlp_scale, mlp_shift, mlp_gate)
