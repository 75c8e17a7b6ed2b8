"""Adaptive layer norm: a norm whose scale and shift are computed from a condition (arXiv:2212.09748, section 3.2).

B batch, T tokens, D width, C width of the condition. Modulations may have an axis of segments behind the batch.
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.fused_linear import FusedLinear


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
    """Split (..., 6 D) into the attention branch's modulation and the MLP branch's: shift, scale, gate of each."""
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = values.chunk(6, dim=-1)
    return GatedModulation(scale, shift, gate), GatedModulation(mlp_scale, mlp_shift, mlp_gate)


class AdaLN(nn.Module):
    """LayerNorm without parameters of its own, then (1 + scale) and shift from one Linear (no SiLU before it)."""

    def __init__(self, width: int, condition_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = FusedLinear(condition_width, 2 * width, 2)

    def read(self, condition: Tensor) -> Modulation:
        """Compute scale and shift, in the Linear's output order, from the condition (B, C)."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        return Modulation(scale, shift)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalise and modulate: (B, T, D), (B, C) -> (B, T, D)."""
        return modulate(self.norm(x), self.read(condition))


class AdaLNZero(nn.Module):
    """The six-way, gated modulation of a whole block (facebookresearch/DiT): SiLU -> Linear, zero-initialised.

    All gates start at 0, so a block starts as the identity.
    """

    def __init__(self, width: int, condition_width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.modulation = zero_linear(condition_width, 6 * width, 6)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the attention branch's modulation and the MLP branch's from the condition (B, C)."""
        return split_six(self.modulation(functional.silu(condition)))
