"""Time embedding: a sinusoid, then two linear layers (Peebles and Xie 2023, arXiv:2212.09748)."""

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.embeddings import Denominator, SinusoidLayout, embed


class TimeEmbedding(nn.Module):
    """Sinusoid of width `dim` -> Linear -> SiLU -> Linear, both linear layers `width` wide."""

    def __init__(
        self,
        dim: int,
        width: int,
        scale: float = 1.0,
        layout: SinusoidLayout = "sin_cos",
        denominator: Denominator = "half_minus_1",
    ) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.layout: SinusoidLayout = layout
        self.denominator: Denominator = denominator
        self.hidden = nn.Linear(dim, width)
        self.out = nn.Linear(width, width)

    def sinusoid(self, t: Tensor) -> Tensor:
        """Embed times without weights: (batch,) -> (batch, dim), rounded once, to the weights' dtype."""
        dtype = self.hidden.weight.dtype
        return embed(t, self.dim, layout=self.layout, denominator=self.denominator, scale=self.scale, dtype=dtype)

    def forward(self, t: Tensor) -> Tensor:
        """Embed times, (batch,) in the unit that the network was trained on -> (batch, width) in the weights' dtype."""
        return self.out(functional.silu(self.hidden(self.sinusoid(t))))
