"""The patch path: the content of an image, in tokens of patches that are updated together with those of text.

B batch, N = rows * columns patches, T text tokens, P patch size, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from denoisers.layers.adaln import SandwichBlock
from denoisers.layers.attention import GatedAttention, SwiGLU
from denoisers.layers.rope import MRoPE
from denoisers.pixelhdm.spec import CHANNELS, PixelHDMSpec


class BottleneckEmbedding(nn.Module):
    """Embedding of patches through a bottleneck: two Linears without biases, SiLU between them."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.squeeze = nn.Linear(spec.patch_size**2 * CHANNELS, spec.bottleneck_width, bias=False)
        self.expand = nn.Linear(spec.bottleneck_width, spec.width, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Embed patches (B, N, P * P * 3): (B, N, D)."""
        return self.expand(functional.silu(self.squeeze(patches)))


def build_attention(spec: PixelHDMSpec) -> GatedAttention:
    """Build an attention layer; all parts of the network have the same kind."""
    return GatedAttention(spec.width, spec.num_heads, spec.num_kv_heads, spec.gate)


def build_patch_block(spec: PixelHDMSpec) -> SandwichBlock:
    """Build a block of joint attention over text and patches and a SwiGLU, modulated by the time embedding alone."""
    return SandwichBlock(
        build_attention(spec), SwiGLU(spec.width, spec.mlp_width), spec.width, spec.width, spec.norm_eps
    )


def image_positions(rows: int, columns: int, text_lengths: Tensor) -> Tensor:
    """Positions (text length, row, column) of each patch, (B, N, 3), for the samples' own text lengths (B,) int64."""
    place = torch.cartesian_prod(
        torch.arange(rows, device=text_lengths.device), torch.arange(columns, device=text_lengths.device)
    )  # (N, 2)
    num = len(text_lengths)
    return torch.cat((text_lengths[:, None, None].expand(-1, len(place), 1), place.expand(num, -1, -1)), dim=-1)


def text_positions(length: int, num: int, device: torch.device) -> Tensor:
    """Positions (n, 0, 0) of text token n: (num, T, 3) int64."""
    n = torch.arange(length, device=device)
    return functional.pad(n[:, None], (0, 2)).expand(num, -1, -1)


def build_rope(spec: PixelHDMSpec) -> MRoPE:
    """Build rotations by text position, row and column. An image's text position is a text's length: one more than the
    last token's."""
    lengths = (spec.text_length + 1, spec.max_patches, spec.max_patches)
    return MRoPE(lengths, spec.mrope_widths, spec.rope_base)


class LearnedPositions(nn.Module):
    """A trained vector for each position in a text, and one for each row and column of the largest image."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.columns = spec.max_patches
        self.text = nn.Embedding(spec.text_length, spec.width)
        self.image = nn.Embedding(spec.max_patches**2, spec.width)

    def forward(self, text_length: int, rows: int, columns: int) -> Tensor:
        """Look up the vectors of T text tokens and of the patches behind them, in images of any size: (T + N, D)."""
        device = self.text.weight.device
        row = torch.arange(rows, device=device)[:, None]
        cells = (row * self.columns + torch.arange(columns, device=device)).flatten()
        return torch.cat((self.text(torch.arange(text_length, device=device)), self.image(cells)))
