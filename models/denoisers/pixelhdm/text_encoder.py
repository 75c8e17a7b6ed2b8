"""What the network is told of a caption, and the small encoder of bytes that can be trained to tell it.

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.mrope import AxisTable
from denoisers.layers.rope import Rotation
from denoisers.layers.swiglu import SwiGLU
from denoisers.pixelhdm.model_spec import NUM_BYTES, PixelHDMSpec
from denoisers.pixelhdm.patch_path import attention

PADDING = 0


class TextCondition(NamedTuple):
    """Captions as the network takes them."""

    features: Tensor
    """(B, T, D), of each token."""
    present: Tensor
    """(B, T) bool: false for padding, which stands behind a caption."""
    pooled: Tensor
    """(B, D), of each caption as a whole."""


def null_where_dropped(text: TextCondition, keep: Tensor) -> TextCondition:
    """The null condition where `keep` (B,) bool is false: one token of zeros, and zeros as the whole.

    One token, not none or as many as there were: so it is the same condition whatever prompt it stands for.
    """
    first = torch.arange(text.features.shape[1], device=keep.device) == 0
    return TextCondition(
        torch.where(keep[:, None, None], text.features, 0),
        torch.where(keep[:, None], text.present, first),
        torch.where(keep[:, None], text.pooled, 0),
    )


class CaptionBytes(NamedTuple):
    """Captions as the learned encoder takes them."""

    tokens: Tensor
    """(num, longest) int64: bytes of UTF-8, 0 behind the end. `longest` is at least 1."""
    num_truncated: int
    """Captions that were longer than allowed."""


def caption_bytes(texts: Sequence[str], length: int) -> CaptionBytes:
    """Captions in bytes, those of more than `length` cut where a character ends."""
    whole = [text.encode() for text in texts]
    kept = [text[:length].decode(errors="ignore").encode() for text in whole]
    longest = max([1, *map(len, kept)])
    tokens = torch.tensor([list(text.ljust(longest, bytes([PADDING]))) for text in kept], dtype=torch.int64)
    return CaptionBytes(tokens.reshape(len(kept), longest), sum(len(text) > length for text in whole))


class TextBlock(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attention: GatedAttention = attention(spec)
        self.mlp_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.mlp = SwiGLU(spec.width, spec.mlp_width)

    def forward(self, x: Tensor, by: Rotation, present: Tensor) -> Tensor:
        """(B, T, D) -> the same shape; tokens that are not `present` (B, T) are not attended to."""
        x = x + self.attention(self.attention_norm(x), by, present)
        return x + self.mlp(self.mlp_norm(x))


class TextEncoder(nn.Module):
    """A bidirectional transformer over bytes: features and their summary both come out with a mean square of 1."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_BYTES, spec.width)
        self.places = AxisTable(spec.text_length, spec.head_width, spec.rope_base)
        self.blocks = nn.ModuleList(TextBlock(spec) for _ in range(spec.text_depth))
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.pool = nn.Linear(spec.width, spec.width, bias=False)
        self.pooled_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)

    def forward(self, tokens: Tensor) -> TextCondition:
        """Bytes (B, T) int64, 0 behind the end -> their features. A caption without a byte is told as zeros."""
        present = tokens != PADDING
        x = self.embedding(tokens)
        dtype = torch.promote_types(x.dtype, torch.float32)
        by = self.places(torch.arange(tokens.shape[1], device=tokens.device), dtype)
        for block in cast("list[TextBlock]", list(self.blocks)):
            x = block(x, by, present)
        features = self.norm(x)
        summed = torch.where(present[..., None], features, 0).sum(dim=1)
        mean = summed / present.sum(dim=1, keepdim=True).clamp_min(1)
        return TextCondition(features, present, self.pooled_norm(self.pool(mean.to(x.dtype))))
