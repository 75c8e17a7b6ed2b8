"""Text conditions of the network, and the small encoder of bytes that is trained along with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ditlab_models.layers.attention import GatedAttention, SwiGLU
from ditlab_models.layers.rope import AxisTable, Rotation
from ditlab_models.pixelhdm.spec import NUM_BYTES, PixelHDMSpec
from ditlab_models.tensors import wide_dtype

PADDING = 0


class TextCondition(NamedTuple):
    """Captions as inputs of the network."""

    features: Tensor
    """(B, T, D): a feature for each token."""
    mask: Tensor
    """(B, T) bool: false for padding, which stands behind a caption."""
    pooled: Tensor
    """(B, D): a feature for each caption."""


def drop_captions(text: TextCondition, keep: Tensor) -> TextCondition:
    """Replace captions where `keep` (B,) bool is false by the null condition: one token of zeros,
    zeros as `pooled`.
    """
    first = torch.arange(text.features.shape[1], device=keep.device) == 0
    return TextCondition(
        torch.where(keep[:, None, None], text.features, 0),
        torch.where(keep[:, None], text.mask, first),
        torch.where(keep[:, None], text.pooled, 0),
    )


def caption_bytes(texts: Sequence[str], length: int) -> Tensor:
    """Encode captions as UTF-8, cut at `length` bytes: (num, longest >= 1) int64, 0 behind the
    end.
    """
    kept = [text.encode()[:length].decode(errors="ignore").encode() for text in texts]
    longest = max([1, *map(len, kept)])
    tokens = torch.tensor(
        [list(text.ljust(longest, bytes([PADDING]))) for text in kept], dtype=torch.int64
    )
    return tokens.reshape(len(kept), longest)


def build_attention(spec: PixelHDMSpec) -> GatedAttention:
    """Build an attention layer; all parts of the network have the same kind."""
    return GatedAttention(spec.width, spec.num_heads, spec.num_kv_heads, spec.gate)


class TextBlock(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attention: GatedAttention = build_attention(spec)
        self.mlp_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.mlp = SwiGLU(spec.width, spec.mlp_width)

    def forward(self, x: Tensor, rope: Rotation, key_mask: Tensor) -> Tensor:
        """Transform (B, T, D); `key_mask` (B, T) bool is false for tokens that are not attended
        to.
        """
        x = x + self.attention(self.attention_norm(x), rope, key_mask)
        return x + self.mlp(self.mlp_norm(x))


class TextEncoder(nn.Module):
    """A bidirectional transformer over bytes; features and pooled features both have a mean square
    of 1.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_BYTES, spec.width)
        self.places = AxisTable(spec.text_length, spec.head_width, spec.rope_base)
        self.blocks = nn.ModuleList(TextBlock(spec) for _ in range(spec.text_depth))
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.pool = nn.Linear(spec.width, spec.width, bias=False)
        self.pooled_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)

    def forward(self, tokens: Tensor) -> TextCondition:
        """Encode bytes (B, T) int64, 0 behind the end. A caption without a byte has a pooled
        feature of zeros.
        """
        mask = tokens != PADDING
        x = self.embedding(tokens)
        rope = self.places(torch.arange(tokens.shape[1], device=tokens.device), wide_dtype(x))
        for block in self.blocks:
            x = block(x, rope, mask)
        features = self.norm(x)
        summed = torch.where(mask[..., None], features, 0).sum(dim=1)
        mean = summed / mask.sum(dim=1, keepdim=True).clamp_min(1)
        return TextCondition(features, mask, self.pooled_norm(self.pool(mean.to(x.dtype))))
