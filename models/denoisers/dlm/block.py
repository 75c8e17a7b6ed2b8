"""The block of the language model: rotary attention and SwiGLU, each modulated and gated by the noise level.

B batch, T tokens, D width, C width of the condition. A sequence is N segments of T / N tokens, each with a condition of
its own: N = 1 is a condition by sample, N = T one by token.
"""

from __future__ import annotations

from torch import Tensor, nn

from denoisers.layers.adaln import GatedModulation, Modulation, add_gated, modulate, split_six, zero_linear
from denoisers.layers.attention import SelfAttention
from denoisers.layers.kv_cache import LayerCache
from denoisers.layers.masked_attention import AttentionMask
from denoisers.layers.mlp import SwiGLU
from denoisers.layers.rope import Rotation

NORM_EPS = 1e-6


def modulate_segments(x: Tensor, modulation: Modulation | GatedModulation) -> Tensor:
    """Modulate by segment: x (B, T, D), scale and shift (B, N, D) -> (B, T, D)."""
    return modulate(_segments(x, modulation.scale), modulation).flatten(1, 2)


def add_gated_segments(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """Add a branch gated by segment: x and branch (B, T, D), gate (B, N, D) -> (B, T, D)."""
    return add_gated(_segments(x, gate), _segments(branch, gate), gate).flatten(1, 2)


def _segments(x: Tensor, values: Tensor) -> Tensor:
    """Split tokens into the segments of `values` (B, N, D): (B, T, D) -> (B, N, T / N, D)."""
    return x.unflatten(1, (values.shape[1], -1))


class DLMBlock(nn.Module):
    """x + gate attention(modulated norm), then x + gate SwiGLU(modulated norm): the identity until it is trained."""

    def __init__(self, width: int, num_heads: int, mlp_width: int, condition_width: int) -> None:
        super().__init__()
        self.modulation = zero_linear(condition_width, 6 * width, 6)
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.attention = SelfAttention(width, num_heads, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.mlp = SwiGLU(width, mlp_width)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        rope: Rotation,
        mask: AttentionMask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Transform x (B, T, D) under the condition (B, N, C), which has passed a SiLU already.

        `mask` (T, T) or (B, 1, T, T), or (T, cached + T) with a cache, is true where a token attends to another; it may
        be tiles. Keys and values are added to the cache, uncommitted.
        """
        before_attention, before_mlp = split_six(self.modulation(condition))
        normed = modulate_segments(self.attention_norm(x), before_attention)
        x = add_gated_segments(x, self.attention(normed, mask=mask, rope=rope, cache=cache), before_attention.gate)
        branch = self.mlp(modulate_segments(self.mlp_norm(x), before_mlp))
        return add_gated_segments(x, branch, before_mlp.gate)
