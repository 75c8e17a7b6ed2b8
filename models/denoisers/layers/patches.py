"""Images as sequences of patches, and back (Dosovitskiy et al. 2021, arXiv:2010.11929).

B batch, C channels, P patch size, N = rows * columns patches, read row by row.
"""

from torch import Tensor, nn


def patchify(image: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches: (B, C, rows * P, columns * P) -> (B, N, P * P * C); a patch by row, column, channel."""
    patches = image.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))  # (B, C, rows, P, columns, P)
    return patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, patch_size: int, rows: int, channels: int) -> Tensor:
    """Invert `patchify`: (B, N, P * P * C) -> (B, C, rows * P, columns * P)."""
    grid = patches.unflatten(2, (patch_size, patch_size, channels)).unflatten(1, (rows, -1))
    return grid.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


class PatchEmbedding(nn.Module):
    """A linear map of every patch to a token: a strided convolution."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, image: Tensor) -> Tensor:
        """Embed patches: (B, C, rows * P, columns * P) -> (B, N, width)."""
        return self.projection(image).flatten(2).transpose(1, 2)
