"""What a network is told about time: a sinusoid, then two linear layers (Peebles and Xie 2023, arXiv:2212.09748)."""

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.embeddings import embed


class TimeEmbedding(nn.Module):
    """Sinusoid of width `dim` ([sin, cos], half - 1) -> Linear -> SiLU -> Linear, both linear layers `width` wide."""

    def __init__(self, dim: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.hidden = nn.Linear(dim, width)
        self.out = nn.Linear(width, width)

    def sinusoid(self, t: Tensor) -> Tensor:
        """(batch,) -> (batch, dim), float32 or better whatever the weights' dtype."""
        return embed(t, self.dim, layout="sin_cos", denominator="half_minus_1", scale=self.scale)

    def forward(self, t: Tensor) -> Tensor:
        """Time in [0, 1], (batch,) -> (batch, width) in the weights' dtype."""
        sinusoid = self.sinusoid(t).to(self.hidden.weight.dtype)
        return self.out(functional.silu(self.hidden(sinusoid)))
