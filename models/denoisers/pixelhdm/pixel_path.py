"""The pixel path: detail, pixel by pixel, told by the patch path what to show.

B batch, N patches, M = P * P pixels of a patch, D width of the patch path, W width of a pixel.
"""

from __future__ import annotations

from torch import Tensor, nn

from denoisers.layers.rope import Rotation
from denoisers.layers.sandwich_block import BranchModulation, SixWayAdaLN
from denoisers.layers.swiglu import SwiGLU
from denoisers.pixelhdm.model_spec import PixelHDMSpec
from denoisers.pixelhdm.patch_path import attention

EXPAND_GAIN = 0.1
"""Xavier gain of a compaction's way back: a pixel block starts near the identity."""


class PixelwiseAdaLN(nn.Module):
    """A modulation of its own for every pixel, from the token of its patch.

    There is no norm between the two Linears: it would keep a token's direction alone, and tokens of different texts
    have nearly the same one.
    """

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.pixels = spec.patch_size**2
        self.expand = nn.Linear(spec.width, self.pixels * spec.pixel_width, bias=False)
        self.six_way = SixWayAdaLN(spec.pixel_width, spec.pixel_width, gamma=spec.adaln_init_gain)

    def forward(self, condition: Tensor) -> tuple[BranchModulation, BranchModulation]:
        """(B, N, D) -> the compaction's modulation and the SwiGLU's, each (B, N, M, W)."""
        return self.six_way(self.expand(condition).unflatten(-1, (self.pixels, -1)))


class TokenCompaction(nn.Module):
    """Attention of patches, each squeezed into one token: N tokens rather than N * M (arXiv:2511.20645)."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        patch_width = spec.patch_size**2 * spec.pixel_width
        self.residual = spec.pixel_residual
        self.compress = nn.Linear(patch_width, spec.width, bias=False)
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attention = attention(spec)
        self.post_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.expand = nn.Linear(spec.width, patch_width, bias=False)
        self.start()

    def start(self) -> None:
        """Puts the way back to where it starts: small."""
        nn.init.xavier_uniform_(self.expand.weight, gain=EXPAND_GAIN)

    def forward(self, x: Tensor, by: Rotation | None) -> Tensor:
        """(B, N, M, W) -> the same shape."""
        tokens = self.norm(self.compress(x.flatten(2)))
        tokens = self.post_norm(self.attention(tokens, by))
        detail = self.expand(tokens).view_as(x)
        return x + detail if self.residual == "double" else detail


class PixelBlock(nn.Module):
    """x + alpha branch((1 + gamma) norm(x) + beta), for a token compaction and a SwiGLU, which share the norm."""

    def __init__(self, spec: PixelHDMSpec) -> None:
        super().__init__()
        self.adaln = PixelwiseAdaLN(spec)
        self.norm = nn.RMSNorm(spec.pixel_width, eps=spec.norm_eps)
        self.compaction = TokenCompaction(spec)
        self.mlp = SwiGLU(spec.pixel_width, spec.pixel_mlp_width)

    def forward(self, x: Tensor, condition: Tensor, by: Rotation | None = None) -> Tensor:
        """x (B, N, M, W), condition (B, N, D) -> (B, N, M, W)."""
        compacting, feeding = self.adaln(condition)
        h = (1 + compacting.gamma) * self.norm(x) + compacting.beta
        x = x + compacting.alpha * self.compaction(h, by)
        h = (1 + feeding.gamma) * self.norm(x) + feeding.beta
        return x + feeding.alpha * self.mlp(h)
