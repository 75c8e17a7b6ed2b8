"""The transformer block with adaLN-Zero (Peebles and Xie 2023, arXiv:2212.09748, section 3.2).

B batch, T tokens, Q tokens whose output is wanted, D width, C width of the condition.
"""

from torch import Tensor, nn

from denoisers.layers.adaln import AdaLNZero, Modulation, modulate
from denoisers.layers.attention import SelfAttention
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
        self, x: Tensor, condition: Tensor, present: Tensor | None = None, wanted: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D), condition (B, C) -> (B, T, D); with `wanted` (B, Q) int64 only these tokens, (B, Q, D).

        Tokens that are not `present` (B, T) bool are not attended to. Outputs of wanted tokens are what they would be
        in the whole result: keys and values still come from all tokens, queries and the MLP from these alone.
        """
        before_attention, before_mlp = self.adaln(condition)
        assert before_attention.gate is not None and before_mlp.gate is not None
        normed = modulate(self.adaln.norm(x), before_attention)
        asking = None
        if wanted is not None:
            x, asking = take_rows(x, wanted), take_rows(normed, wanted)
        x = x + before_attention.gate[:, None] * self.attention(normed, asking, present)
        branch = self.mlp(modulate(self.adaln.norm(x), before_mlp))
        return x + before_mlp.gate[:, None] * branch

    def modulations(self, condition: Tensor) -> tuple[Modulation, Modulation]:
        """What (B, C) does before attention and before the MLP, for pictures."""
        return self.adaln(condition)
