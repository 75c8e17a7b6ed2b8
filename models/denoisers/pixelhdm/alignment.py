"""REPA: alignment of image tokens with a frozen encoder's features of the clean image (Yu et al., arXiv:2410.06940).

The improved form of iREPA (Singh et al. 2025, arXiv:2512.10794): a convolution in place of an MLP, so that a token is
compared with its neighbourhood, and features without their mean over the image. B batch, N patches row by
row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6


class Alignment(nn.Module):
    """Projection of tokens to the encoder's width, and their distance from its features, a scalar."""

    def __init__(self, width: int, target_width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(width, target_width, kernel_size=3, padding=1)

    def forward(self, tokens: Tensor, features: Tensor, num_rows: int) -> Tensor:
        """Compute 1 - mean cosine of projected tokens and normalised features, in the better of their dtypes and
        float32.

        tokens (B, N, width), features (B, N, target_width), of images `num_rows` patches high.
        """
        grid = tokens.mT.unflatten(2, (num_rows, -1))  # (B, width, rows, columns)
        projected = self.projection(grid.to(self.projection.weight.dtype)).flatten(2).mT  # (B, N, target_width)
        dtype = torch.promote_types(torch.promote_types(projected.dtype, features.dtype), torch.float32)
        targets = normalise_features(features.to(dtype))
        return 1 - functional.cosine_similarity(projected.to(dtype), targets, dim=-1).mean()


def normalise_features(features: Tensor) -> Tensor:
    """Normalise features (B, N, D) to mean 0 and standard deviation 1 over an image's patches, channel by channel."""
    centred = features - features.mean(1, keepdim=True)
    return centred / (features.std(1, correction=0, keepdim=True) + EPS)
