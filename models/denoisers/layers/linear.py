"""Linear maps of transformer blocks: the feed-forward half, plain or gated, and several maps in one product."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear -> GELU (exact, not the tanh approximation) -> Linear."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden_width)
        self.out = nn.Linear(hidden_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (..., width) to the same shape."""
        return self.out(functional.gelu(self.hidden(x)))


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) * up(x)), three Linears without biases (Shazeer 2020, arXiv:2002.05202, eq. 6)."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden_width, bias=False)
        self.up = nn.Linear(width, hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (..., width) to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class FusedLinear(nn.Linear):
    """Linear whose weight consists of `fused_parts` maps of equal size: the rows of the first, then of the second ...

    An optimiser that works on matrices takes them one by one.
    """

    def __init__(self, inputs: int, outputs: int, fused_parts: int, bias: bool = True) -> None:
        assert outputs % fused_parts == 0, f"{outputs} outputs do not split into {fused_parts} maps"
        super().__init__(inputs, outputs, bias=bias)
        self.fused_parts = fused_parts
