"""Grouped-query attention with normalised queries and keys and a gated output.

Ainslie et al. 2023 (arXiv:2305.13245): groups of query heads share a head of keys and values. Henry et al. 2020
(arXiv:2010.04245): cosines times a learned temperature are the scores. Qiu et al. 2025 (arXiv:2505.06708): a sigmoid
of a projection of the input gates the heads' outputs, before the output projection.

B batch, T tokens, H query heads, G key and value heads, K width of a head.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.attention import attend_to, split_heads
from denoisers.layers.rope import Rotation, rotate

GateKind = Literal["headwise", "elementwise"]


class GatedAttention(nn.Module):
    """Attention of every token to every token of a key mask. No projection has a bias."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, gate: GateKind = "headwise") -> None:
        super().__init__()
        assert width % num_heads == 0, f"width {width} does not split into {num_heads} heads"
        assert num_heads % num_kv_heads == 0, f"{num_heads} heads do not share {num_kv_heads} evenly"
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        head_width = width // num_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.value = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.gate = nn.Linear(width, num_heads if gate == "headwise" else width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.temperature = nn.Parameter(torch.full((1,), head_width**0.5))
        self.initialise()

    def initialise(self) -> None:
        """Set the gate's weight to 0: the gate is 0.5, whatever the input."""
        nn.init.zeros_(self.gate.weight)

    def forward(self, x: Tensor, rope: Rotation | None = None, key_mask: Tensor | None = None) -> Tensor:
        """x (B, T, H * K) -> the same shape. `key_mask` (B, T) bool is false for tokens that are not attended to."""
        q, k, v = self.heads(x, rope)
        mask = attend_to(key_mask)
        if mask is not None:
            # On a GPU only the flash kernel shares heads, and it takes no masks: shared heads with a mask would fall
            # back on the kernel that holds the whole (T, T) of scores.
            k, v = (each.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=1.0, enable_gqa=k.shape[1] != self.num_heads
        )  # (B, H, T, K)
        return self.out((mixed.transpose(1, 2) * self.gates(x)).flatten(2))

    def heads(self, x: Tensor, rope: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K); a product of query and key is a score as it stands.

        Norms and rotations are computed in float32 at least.
        """
        q, k = split_heads(self.query(x), self.num_heads), split_heads(self.key(x), self.num_kv_heads)
        v = split_heads(self.value(x), self.num_kv_heads)
        dtype = torch.promote_types(v.dtype, torch.float32)
        q, k = (functional.normalize(each.to(dtype), dim=-1) for each in (q, k))
        if rope is not None:
            q, k = (rotate(each, rope, "neighbours") for each in (q, k))
        return (q * self.temperature.to(dtype)).to(v.dtype), k.to(v.dtype), v

    def gates(self, x: Tensor) -> Tensor:
        """Factors in (0, 1) of the heads' outputs: (B, T, H * K) -> (B, T, H, 1), or (B, T, H, K) if elementwise."""
        return self.gate(x).sigmoid().unflatten(-1, (self.num_heads, -1))
