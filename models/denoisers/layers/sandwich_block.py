"""Transformer blocks whose branches have a norm on both sides, modulated by a condition.

The sandwich norm is CogView's (Ding et al. 2021, arXiv:2105.13290). B batch, T tokens, D width, C width
of the condition.
"""

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.adaln import GatedModulation
from denoisers.layers.fused_linear import FusedLinear
from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.rope import Rotation


class SixWayAdaLN(nn.Module):
    """SiLU, then a Linear that gives scale, shift and gate of a block's two branches. No norm of its own."""

    def __init__(self, condition_width: int, width: int, initial_scale: float) -> None:
        """The scale's bias starts at `initial_scale`, the shift's at 0 and the gate's at 1."""
        super().__init__()
        self.initial_scale = initial_scale
        self.linear = FusedLinear(condition_width, 6 * width, 6)
        self.initialise()

    def initialise(self) -> None:
        """Set the biases to their initial values."""
        scale, shift, gate = self.linear.bias.detach().unflatten(0, (2, 3, -1)).unbind(1)
        scale.fill_(self.initial_scale)
        shift.zero_()
        gate.fill_(1.0)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the first branch's modulation and the second's from the condition (..., C)."""
        scale, shift, gate, *second = self.linear(functional.silu(condition)).chunk(6, dim=-1)
        return GatedModulation(scale, shift, gate), GatedModulation(*second)


class SandwichBlock(nn.Module):
    """x + gate norm(branch(scale norm(x) + shift)), the branches being attention and a feed-forward network."""

    def __init__(self, attention: GatedAttention, mlp: nn.Module, width: int, condition_width: int, eps: float) -> None:
        super().__init__()
        self.adaln = SixWayAdaLN(condition_width, width, initial_scale=1.0)
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = attention
        self.attention_post_norm = nn.RMSNorm(width, eps=eps)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mlp
        self.mlp_post_norm = nn.RMSNorm(width, eps=eps)

    def forward(
        self, x: Tensor, condition: Tensor, rope: Rotation | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D). `key_mask` (B, T) bool is false for tokens not attended to."""
        attention, mlp = self.adaln(condition[:, None])
        h = attention.scale * self.attention_norm(x) + attention.shift
        x = x + attention.gate * self.attention_post_norm(self.attention(h, rope, key_mask))
        h = mlp.scale * self.mlp_norm(x) + mlp.shift
        return x + mlp.gate * self.mlp_post_norm(self.mlp(h))
