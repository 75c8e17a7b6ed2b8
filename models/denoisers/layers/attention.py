"""Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

B batch, T tokens, Q tokens that ask (all T, or a few of them), H heads, K width of a head.
"""

from torch import Tensor, nn
from torch.nn import functional


class QKV(nn.Linear):
    """One Linear for queries, keys and values; the rows of its weight are those of q, then of k, then of v."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)

    def forward(self, x: Tensor, asking: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Keys and values of x (B, T, D), queries of `asking` (B, Q, D) or of x itself: (B, Q, D) and two (B, T, D)."""
        if asking is None:
            q, k, v = super().forward(x).chunk(3, dim=-1)
            return q, k, v
        # Here rather than in the block: ZeRO-3 gathers a weight for the forward pass of the module that owns it.
        width = x.shape[-1]
        q = functional.linear(asking, self.weight[:width], self.bias[:width])
        k, v = functional.linear(x, self.weight[width:], self.bias[width:]).chunk(2, dim=-1)
        return q, k, v


class SelfAttention(nn.Module):
    """Every token attends to every token. All projections have biases; scores are divided by sqrt(K)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        self.num_heads = num_heads
        self.qkv = QKV(width)
        self.out = nn.Linear(width, width)

    def heads(self, x: Tensor, asking: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, Q, K), keys and values (B, H, T, K) of x (B, T, H * K)."""
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x, asking))
        return q, k, v

    def forward(self, x: Tensor, asking: Tensor | None = None, present: Tensor | None = None) -> Tensor:
        """x (B, T, H * K) -> the same shape, or one output for each token of `asking` (B, Q, H * K).

        Only tokens that are `present` (B, T) bool are attended to; None: all.
        """
        q, k, v = self.heads(x, asking)
        keys = None if present is None else present[:, None, None]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=keys)  # (B, H, Q, K)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def attention_weights(self, x: Tensor) -> Tensor:
        """What `forward` weighs values by, for pictures: (B, T, H * K) -> (B, H, queries T, keys T), rows sum to 1."""
        q, k, _ = self.heads(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.softmax(dim=-1)
