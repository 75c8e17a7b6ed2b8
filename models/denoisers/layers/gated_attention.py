"""Grouped-query attention with normalised queries and keys and a gated output.

Ainslie et al. 2023 (arXiv:2305.13245): groups of query heads share a head of keys and values. Henry et al. 2020
(arXiv:2010.04245): cosines times a learned temperature are the scores. Qiu et al. 2025 (arXiv:2505.06708): a sigmoid
read from the input gates what was attended to, before the output projection.

B batch, T tokens, H query heads, G key and value heads, K width of a head.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.rope import Rotation, rotate

GateKind = Literal["headwise", "elementwise"]


class GatedAttention(nn.Module):
    """Every token attends to every token that is present. No projection has a bias."""

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
        self.start()

    def start(self) -> None:
        """Puts the gate back to where it starts: at 0.5, whatever the input."""
        nn.init.zeros_(self.gate.weight)

    def forward(self, x: Tensor, by: Rotation | None = None, present: Tensor | None = None) -> Tensor:
        """x (B, T, H * K) -> the same shape. Tokens that are not `present` (B, T) bool are not attended to."""
        q, k, v = self.heads(x, by)
        mask = None if present is None else present[:, None, None]
        if mask is not None:
            # On a GPU only the flash kernel shares heads, and it takes no masks: shared heads with a mask would fall
            # back on the kernel that holds the whole (T, T) of scores.
            k, v = (each.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=1.0, enable_gqa=k.shape[1] != self.num_heads
        )  # (B, H, T, K)
        return self.out((mixed.transpose(1, 2) * self.gates(x)).flatten(2))

    def heads(self, x: Tensor, by: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K); a product of query and key is a score as it stands.

        Norms and rotations are computed in float32 at least.
        """
        q, k = _split(self.query(x), self.num_heads), _split(self.key(x), self.num_kv_heads)
        v = _split(self.value(x), self.num_kv_heads)
        dtype = torch.promote_types(v.dtype, torch.float32)
        q, k = (functional.normalize(each.to(dtype), dim=-1) for each in (q, k))
        if by is not None:
            q, k = (rotate(each, by, "neighbours") for each in (q, k))
        return (q * self.temperature.to(dtype)).to(v.dtype), k.to(v.dtype), v

    def gates(self, x: Tensor) -> Tensor:
        """In (0, 1), by which the heads' outputs are multiplied: (B, T, H * K) -> (B, T, H, 1), or K if elementwise."""
        return self.gate(x).sigmoid().unflatten(-1, (self.num_heads, -1))


def _split(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
