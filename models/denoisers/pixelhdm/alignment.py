"""REPA: image tokens learn to say what a frozen encoder sees in the clean image (Yu et al. 2025, arXiv:2410.06940).

The improved form of iREPA (Singh et al. 2025, arXiv:2512.10794): a convolution in place of an MLP, so that a token is
compared with its neighbourhood, and features whose common part over the image is taken out. B batch, N patches row by
row.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6


class Alignment(nn.Module):
    """Projects tokens to the encoder's width and compares: (B, N, width) with (B, N, target_width) -> a scalar."""

    def __init__(self, width: int, target_width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(width, target_width, kernel_size=3, padding=1)

    def forward(self, tokens: Tensor, features: Tensor, num_rows: int) -> Tensor:
        """1 - mean cosine of projected tokens and normalised features, in float32 or better.

        Of images `num_rows` patches high.
        """
        grid = tokens.mT.unflatten(2, (num_rows, -1))  # (B, width, rows, columns)
        projected = self.projection(grid.to(self.projection.weight.dtype)).flatten(2).mT  # (B, N, target_width)
        targets = normalised(features.float())
        return 1 - functional.cosine_similarity(projected.to(targets.dtype), targets, dim=-1).mean()


def normalised(features: Tensor) -> Tensor:
    """(B, N, D): mean 0 and standard deviation 1 over an image's patches, channel by channel."""
    centred = features - features.mean(1, keepdim=True)
    return centred / (features.std(1, correction=0, keepdim=True) + EPS)
