"""Adaptive layer norm, and the transformer blocks that it modulates.

A norm's scale and shift are computed from a condition: adaLN-Zero (Peebles and Xie 2023,
arXiv:2212.09748, section 3.2). The branches of a sandwich block have a norm on both sides.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.layers.attention import (
    MLP,
    FusedLinear,
    GatedAttention,
    GeluKind,
    SelfAttention,
    attend_to,
)
from ditlab_models.layers.rope import Rotation
from ditlab_models.tensors import take_rows


class Modulation(NamedTuple):
    """Scale and shift of a normalised branch input; each (..., D)."""

    scale: Tensor
    shift: Tensor


class GatedModulation(NamedTuple):
    """Scale and shift of a branch's input, and the gate of its output; each (..., D)."""

    scale: Tensor
    shift: Tensor
    gate: Tensor


def modulate(x: Tensor, modulation: Modulation | GatedModulation) -> Tensor:
    """x (1 + scale) + shift, the same for every token: x (..., T, D), scale and shift (..., D)."""
    return x * (1 + modulation.scale.unsqueeze(-2)) + modulation.shift.unsqueeze(-2)


def add_gated(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """x + gate branch, the same for every token: x and branch (..., T, D), gate (..., D)."""
    return x + gate.unsqueeze(-2) * branch


def zero_linear(inputs: int, outputs: int, fused_parts: int) -> FusedLinear:
    """Build a Linear of so many maps whose weights and biases start at 0."""
    linear = FusedLinear(inputs, outputs, fused_parts)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def split_six(values: Tensor) -> tuple[GatedModulation, GatedModulation]:
    """Split (..., 6 D) into the attention branch's modulation and the MLP branch's: shift, scale,
    gate of each.
    """
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = values.chunk(6, dim=-1)
    return GatedModulation(scale, shift, gate), GatedModulation(mlp_scale, mlp_shift, mlp_gate)


class AdaLN(nn.Module):
    """LayerNorm without parameters of its own, then (1 + scale) and shift from one Linear (no SiLU
    before it).
    """

    def __init__(self, width: int, condition_width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.modulation = FusedLinear(condition_width, 2 * width, 2)

    def read(self, condition: Tensor) -> Modulation:
        """Compute scale and shift, in the Linear's output order, from the condition (B, C)."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        return Modulation(scale, shift)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalise and modulate: (B, T, D), (B, C) -> (B, T, D)."""
        return modulate(self.norm(x), self.read(condition))


class FinalAdaLN(nn.Module):
    """LayerNorm without parameters of its own, modulated by SiLU -> Linear, zero-initialised:
    before DiT's head.
    """

    def __init__(self, width: int, condition_width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.modulation = zero_linear(condition_width, 2 * width, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalise and modulate, the Linear giving shift before scale: (B, T, D), (B, C) -> (B, T,
        D).
        """
        shift, scale = self.modulation(functional.silu(condition)).chunk(2, dim=-1)
        return modulate(self.norm(x), Modulation(scale, shift))


class AdaLNZero(nn.Module):
    """The six-way, gated modulation of a whole block (facebookresearch/DiT): SiLU -> Linear,
    zero-initialised.
    """

    def __init__(
        self, width: int, condition_width: int, eps: float = 1e-5, mlp_eps: float | None = None
    ) -> None:
        """The norms before attention and before the MLP have the same `eps` unless `mlp_eps` is
        given.
        """
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.mlp_norm = self.norm
        if mlp_eps is not None and mlp_eps != eps:
            self.mlp_norm = nn.LayerNorm(width, eps=mlp_eps, elementwise_affine=False)
        self.modulation = zero_linear(condition_width, 6 * width, 6)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the attention branch's modulation and the MLP branch's from the condition (B,
        C).
        """
        return split_six(self.modulation(functional.silu(condition)))


class AdaLNZeroBlock(nn.Module):
    """x + gate attention(modulated norm), then x + gate MLP(modulated norm): the identity until it
    is trained.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_width: int,
        condition_width: int,
        eps: float = 1e-5,
        mlp_eps: float | None = None,
        gelu: GeluKind = "exact",
    ) -> None:
        super().__init__()
        self.adaln = AdaLNZero(width, condition_width, eps, mlp_eps)
        self.attention = SelfAttention(width, num_heads)
        self.mlp = MLP(width, mlp_width, gelu)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        key_mask: Tensor | None = None,
        query_index: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D), or (B, Q, D), the outputs of the tokens
        `query_index` (B, Q) int64.

        `key_mask` (B, T) bool is false for tokens that are not attended to.
        """
        before_attention, before_mlp = self.adaln(condition)
        normed = modulate(self.adaln.norm(x), before_attention)
        queries = None
        if query_index is not None:
            x = take_rows(x, query_index)
            queries = take_rows(normed, query_index)
        x = add_gated(
            x, self.attention(normed, queries, attend_to(key_mask)), before_attention.gate
        )
        return add_gated(x, self.mlp(modulate(self.adaln.mlp_norm(x), before_mlp)), before_mlp.gate)

    def modulations(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the modulations before attention and before the MLP from the condition (B, C),
        for figures.
        """
        return self.adaln(condition)


class SixWayAdaLN(nn.Module):
    """SiLU, then a Linear that gives scale, shift and gate of a block's two branches. No norm of
    its own.
    """

    def __init__(self, width: int, initial_scale: float) -> None:
        """The scale's bias starts at `initial_scale`, the shift's at 0 and the gate's at 1."""
        super().__init__()
        self.initial_scale = initial_scale
        self.linear = FusedLinear(width, 6 * width, 6)
        self.initialise()

    def initialise(self) -> None:
        """Set the biases to their initial values."""
        scale, shift, gate = self.linear.bias.detach().unflatten(0, (2, 3, -1)).unbind(1)
        scale.fill_(self.initial_scale)
        shift.zero_()
        gate.fill_(1.0)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the first branch's modulation and the second's from the condition (..., D)."""
        scale, shift, gate, *second = self.linear(functional.silu(condition)).chunk(6, dim=-1)
        return GatedModulation(scale, shift, gate), GatedModulation(*second)


class SandwichBlock(nn.Module):
    """x + gate norm(branch(scale norm(x) + shift)), the branches being attention and a feed-forward
    network.
    """

    def __init__(self, attention: GatedAttention, mlp: nn.Module, width: int, eps: float) -> None:
        super().__init__()
        self.adaln = SixWayAdaLN(width, initial_scale=1.0)
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = attention
        self.attention_post_norm = nn.RMSNorm(width, eps=eps)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mlp
        self.mlp_post_norm = nn.RMSNorm(width, eps=eps)

    def forward(
        self,
        x: Tensor,
        condition: Tensor,
        rope: Rotation | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, D), condition (B, D) -> (B, T, D). `key_mask` (B, T) bool is false for tokens
        not attended to.
        """
        attention, mlp = self.adaln(condition[:, None])
        h = attention.scale * self.attention_norm(x) + attention.shift
        x = x + attention.gate * self.attention_post_norm(self.attention(h, rope, key_mask))
        h = mlp.scale * self.mlp_norm(x) + mlp.shift
        return x + mlp.gate * self.mlp_post_norm(self.mlp(h))
