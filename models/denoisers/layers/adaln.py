"""Adaptive layer norm: a norm whose scale and shift are read from the condition (arXiv:2212.09748, section 3.2).

B batch, T tokens, D width, C width of the condition.
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


class Modulation(NamedTuple):
    """What a condition does to one branch of a block; each (B, D)."""

    scale: Tensor
    shift: Tensor
    gate: Tensor | None = None


def modulate(x: Tensor, modulation: Modulation) -> Tensor:
    """x (1 + scale) + shift, the same for every token: (B, T, D) -> (B, T, D)."""
    return x * (1 + modulation.scale[:, None]) + modulation.shift[:, None]


class AdaLN(nn.Module):
    """LayerNorm without parameters of its own, then (1 + scale) and shift from one Linear (no SiLU before it)."""

    def __init__(self, width: int, condition_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(condition_width, 2 * width)

    def read(self, condition: Tensor) -> Modulation:
        """(B, C) -> scale and shift, in the Linear's output order."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        return Modulation(scale, shift)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, T, D), (B, C) -> (B, T, D)."""
        return modulate(self.norm(x), self.read(condition))


class AdaLNZero(nn.Module):
    """The six-way, gated modulation of a whole block (facebookresearch/DiT): SiLU -> Linear, zero-initialised.

    All gates start at 0, so a block starts as the identity.
    """

    def __init__(self, width: int, condition_width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.modulation = nn.Linear(condition_width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, condition: Tensor) -> tuple[Modulation, Modulation]:
        """(B, C) -> the attention branch's modulation and the MLP branch's."""
        chunks = self.modulation(functional.silu(condition)).chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = chunks
        return Modulation(scale, shift, gate), Modulation(mlp_scale, mlp_shift, mlp_gate)
