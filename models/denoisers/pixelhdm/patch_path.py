"""The patch path: what an image shows, in tokens of patches that are updated together with those of text.

B batch, N = rows * columns patches, T text tokens, P patch size, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.mrope import MRoPE
from denoisers.layers.sandwich_block import SandwichBlock
from denoisers.layers.swiglu import SwiGLU
from denoisers.pixelhdm.model_spec import CHANNELS, PixelHDMSpec


class BottleneckEmbedding(nn.Module):
    """Patches as tokens through a narrow waist: two Linears without biases, SiLU between them."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.squeeze = nn.Linear(spec.patch_size**2 * CHANNELS, spec.bottleneck_width, bias=False)
        self.expand = nn.Linear(spec.bottleneck_width, spec.width, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, P * P * 3) -> (B, N, D)."""
        return self.expand(functional.silu(self.squeeze(patches)))


def attention(spec: PixelHDMSpec) -> GatedAttention:
    """The attention that all parts of the network share the form of."""
    return GatedAttention(spec.width, spec.num_heads, spec.num_kv_heads, spec.gate)


def patch_block(spec: PixelHDMSpec) -> SandwichBlock:
    """Joint attention over text and patches, then a SwiGLU, modulated by the time embedding alone."""
    return SandwichBlock(attention(spec), SwiGLU(spec.width, spec.mlp_width), spec.width, spec.width, spec.norm_eps)


def image_positions(rows: int, columns: int, text_lengths: Tensor) -> Tensor:
    """(text length, row, column) of each patch, text lengths (B,) int64 being each sample's own: (B, N, 3)."""
    place = torch.cartesian_prod(
        torch.arange(rows, device=text_lengths.device), torch.arange(columns, device=text_lengths.device)
    )  # (N, 2)
    num = len(text_lengths)
    return torch.cat((text_lengths[:, None, None].expand(-1, len(place), 1), place.expand(num, -1, -1)), dim=-1)


def text_positions(length: int, num: int, device: torch.device) -> Tensor:
    """(n, 0, 0) of text token n: (num, T, 3) int64."""
    n = torch.arange(length, device=device)
    return functional.pad(n[:, None], (0, 2)).expand(num, -1, -1)


def axes_rope(spec: PixelHDMSpec) -> MRoPE:
    """Rotations by text position, row and column. An image's text position is a text's length: one more than a token
    can have."""
    lengths = (spec.text_length + 1, spec.max_patches, spec.max_patches)
    return MRoPE(lengths, spec.mrope_widths, spec.rope_base)


class LearnedPositions(nn.Module):
    """A trained vector for each place in a text, and one for each row and column of the largest image."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.columns = spec.max_patches
        self.text = nn.Embedding(spec.text_length, spec.width)
        self.image = nn.Embedding(spec.max_patches**2, spec.width)

    def forward(self, text_length: int, rows: int, columns: int) -> Tensor:
        """What is added to T text tokens and to the patches behind them, in images of any size: (T + N, D)."""
        device = self.text.weight.device
        row = torch.arange(rows, device=device)[:, None]
        places = (row * self.columns + torch.arange(columns, device=device)).flatten()
        return torch.cat((self.text(torch.arange(text_length, device=device)), self.image(places)))
