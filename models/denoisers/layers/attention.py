"""Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

B batch, T tokens, Q queries (all T tokens, or some of them), S keys (the T tokens, behind those of a cache), H heads,
K width of a head.
"""

from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.fused_linear import FusedLinear
from denoisers.layers.kv_cache import LayerCache
from denoisers.layers.masked_attention import AttentionMask, masked_attention
from denoisers.layers.rope import Rotation, rotate


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the last axis into heads: (B, T, H * K) -> (B, H, T, K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attend_to(key_mask: Tensor | None) -> Tensor | None:
    """The attention mask (B, 1, 1, T) under which every query attends to the keys of `key_mask` (B, T) bool."""
    return None if key_mask is None else key_mask[:, None, None]


class QKV(FusedLinear):
    """One Linear for queries, keys and values; the rows of its weight are those of q, then of k, then of v."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__(width, 3 * width, 3, bias=bias)

    def forward(self, x: Tensor, queries: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Project x (B, T, D) to keys and values, and `queries` (B, Q, D), or x itself, to queries."""
        if queries is None:
            q, k, v = super().forward(x).chunk(3, dim=-1)
            return q, k, v
        # Here rather than in the block: ZeRO-3 gathers a weight for the forward pass of the module that owns it.
        width = x.shape[-1]
        q_bias, kv_bias = (None, None) if self.bias is None else (self.bias[:width], self.bias[width:])
        q = functional.linear(queries, self.weight[:width], q_bias)
        k, v = functional.linear(x, self.weight[width:], kv_bias).chunk(2, dim=-1)
        return q, k, v


class SelfAttention(nn.Module):
    """Attention of every token to every token; scores are divided by sqrt(K). Both projections have biases, or none."""

    def __init__(self, width: int, num_heads: int, bias: bool = True) -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        self.num_heads = num_heads
        self.qkv = QKV(width, bias)
        self.out = nn.Linear(width, width, bias=bias)

    def heads(self, x: Tensor, queries: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, Q, K), keys and values (B, H, T, K) of x (B, T, H * K)."""
        q, k, v = (split_heads(each, self.num_heads) for each in self.qkv(x, queries))
        return q, k, v

    def forward(
        self,
        x: Tensor,
        queries: Tensor | None = None,
        mask: AttentionMask | None = None,
        rope: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, H * K) -> the same shape, or one output for each token of `queries` (B, Q, H * K).

        `mask`, bool, broadcastable to (B, H, Q, S), is true where a query attends to a key; over the T tokens alone it
        may be tiles. `rope` turns queries and keys, never values. Keys and values are appended to the `cache`,
        uncommitted, and those before them attended to.
        """
        q, k, v = self.heads(x, queries)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = masked_attention(q, k, v, mask)  # (B, H, Q, K)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def attention_weights(self, x: Tensor) -> Tensor:
        """Weights of the values in `forward`, for figures: (B, T, H * K) -> (B, H, queries, keys); rows sum to 1."""
        q, k, _ = self.heads(x)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.softmax(dim=-1)
