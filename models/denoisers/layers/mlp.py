"""The feed-forward half of a transformer block."""

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
