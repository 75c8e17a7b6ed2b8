"""The transformer block with adaLN-Zero (Peebles and Xie 2023, arXiv:2212.09748, section 3.2).

B batch, T tokens, Q queries, D width, C width of the condition.
"""

from torch import Tensor, nn

from denoisers.layers.adaln import AdaLNZero, GatedModulation, add_gated, modulate
from denoisers.layers.attention import SelfAttention, attend_to
from denoisers.layers.mlp import MLP
from denoisers.layers.rows import take_rows


class AdaLNZeroBlock(nn.Module):
    """x + gate attention(modulated norm), then x + gate MLP(modulated norm): the identity until it is trained."""

    def __init__(self, width: int, num_heads: int, mlp_width: int, condition_width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.adaln = AdaLNZero(width, condition_width, eps)
        self.attention = SelfAttention(width, num_heads)
        self.mlp = MLP(width, mlp_width)

    def forward(
        self, x: Tensor, condition: Tensor, key_mask: Tensor | None = None, query_index: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D); with `query_index` (B, Q) int64 these tokens alone, (B, Q, D).

        `key_mask` (B, T) bool is false for tokens that are not attended to. The outputs at `query_index` are those of
        the whole result: keys and values still come from all tokens, queries and the MLP from these alone.
        """
        before_attention, before_mlp = self.adaln(condition)
        normed = modulate(self.adaln.norm(x), before_attention)
        queries = None
        if query_index is not None:
            x, queries = take_rows(x, query_index), take_rows(normed, query_index)
        x = add_gated(x, self.attention(normed, queries, attend_to(key_mask)), before_attention.gate)
        return add_gated(x, self.mlp(modulate(self.adaln.norm(x), before_mlp)), before_mlp.gate)

    def modulations(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the modulations before attention and before the MLP from the condition (B, C), for figures."""
        return self.adaln(condition)
