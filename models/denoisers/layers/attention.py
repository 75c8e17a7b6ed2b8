"""Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

B batch, T tokens, H heads, K width of a head.
"""

from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """Every token attends to every token. All projections have biases; scores are divided by sqrt(K)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (B, T, H * K) -> three of (B, H, T, K)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H * K) -> the same shape."""
        q, k, v = self.heads(x)
        mixed = functional.scaled_dot_product_attention(q, k, v)  # (B, H, T, K)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def attention_weights(self, x: Tensor) -> Tensor:
        """What `forward` weighs values by, for pictures: (B, T, H * K) -> (B, H, queries T, keys T), rows sum to 1."""
        q, k, _ = self.heads(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.softmax(dim=-1)
