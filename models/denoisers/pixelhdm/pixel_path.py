"""The pixel path: detail, pixel by pixel, conditioned on the patch path.

B batch, N patches, M = P * P pixels of a patch, D width of the patch path, W width of a pixel.
"""

from __future__ import annotations

from torch import Tensor, nn

from denoisers.layers.adaln import GatedModulation
from denoisers.layers.mlp import SwiGLU
from denoisers.layers.rope import Rotation
from denoisers.layers.sandwich_block import SixWayAdaLN
from denoisers.pixelhdm.model_spec import PixelHDMSpec
from denoisers.pixelhdm.patch_path import build_attention

EXPAND_GAIN = 0.1
"""Xavier gain of a compaction's expansion: a pixel block starts near the identity."""


class PixelwiseAdaLN(nn.Module):
    """A modulation of its own for every pixel, from the token of its patch.

    There is no norm between the two Linears: it would keep a token's direction alone, and tokens of different texts
    have nearly the same one.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.pixels = spec.patch_size**2
        self.expand = nn.Linear(spec.width, self.pixels * spec.pixel_width, bias=False)
        self.six_way = SixWayAdaLN(spec.pixel_width, spec.pixel_width, initial_scale=spec.adaln_init_gain)

    def forward(self, condition: Tensor) -> tuple[GatedModulation, GatedModulation]:
        """Compute the compaction's modulation and the SwiGLU's, each (B, N, M, W), from the condition (B, N, D)."""
        return self.six_way(self.expand(condition).unflatten(-1, (self.pixels, -1)))


class TokenCompaction(nn.Module):
    """Attention of patches, each squeezed into one token: N tokens rather than N * M (arXiv:2511.20645)."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        patch_width = spec.patch_size**2 * spec.pixel_width
        self.residual = spec.pixel_residual
        self.compress = nn.Linear(patch_width, spec.width, bias=False)
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attention = build_attention(spec)
        self.post_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.expand = nn.Linear(spec.width, patch_width, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """Initialise the expansion with a small gain."""
        nn.init.xavier_uniform_(self.expand.weight, gain=EXPAND_GAIN)

    def forward(self, x: Tensor, rope: Rotation | None) -> Tensor:
        """Transform (B, N, M, W) to the same shape."""
        tokens = self.norm(self.compress(x.flatten(2)))
        tokens = self.post_norm(self.attention(tokens, rope))
        detail = self.expand(tokens).view_as(x)
        return x + detail if self.residual == "double" else detail


class PixelBlock(nn.Module):
    """x + gate branch((1 + scale) norm(x) + shift), for a token compaction and a SwiGLU, which share the norm."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.adaln = PixelwiseAdaLN(spec)
        self.norm = nn.RMSNorm(spec.pixel_width, eps=spec.norm_eps)
        self.compaction = TokenCompaction(spec)
        self.mlp = SwiGLU(spec.pixel_width, spec.pixel_mlp_width)

    def forward(self, x: Tensor, condition: Tensor, rope: Rotation | None = None) -> Tensor:
        """Transform x (B, N, M, W) under the condition (B, N, D)."""
        compaction, mlp = self.adaln(condition)
        h = (1 + compaction.scale) * self.norm(x) + compaction.shift
        x = x + compaction.gate * self.compaction(h, rope)
        h = (1 + mlp.scale) * self.norm(x) + mlp.shift
        return x + mlp.gate * self.mlp(h)
