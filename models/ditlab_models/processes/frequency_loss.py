"""Squared error of images with JPEG's weights: by frequency, brightness apart from colour.

YCbCr (ITU-T T.871), DCT-II of 8x8 blocks and quantisation tables (ITU-T T.81, annexes A.3.3 and
K.1), a loss as in DeCo (arXiv:2511.19365). The finer a table quantises a frequency, the more
visible are its errors, and the larger is their weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ditlab_models.processes.specs import DCT_BLOCK
from ditlab_models.tensors import Constant, wide_dtype, without_autocast

# Table K.1: steps by vertical, then horizontal frequency, at quality 50.
LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
# Table K.2.
CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
)
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.299 / 1.772, -0.587 / 1.772, 0.5),
    (0.5, -0.587 / 1.402, -0.114 / 1.402),
)
"""Y, Cb and Cr of red, green and blue, without the offset of Cb and Cr: differences of images have
none.
"""


def quantisation_tables(quality: int) -> tuple[Tensor, Tensor]:
    """Compute JPEG's steps at a quality from 1 to 100, luma and chroma, (8, 8) whole numbers from 1
    to 255 (as the IJG)."""
    assert 1 <= quality <= 100, f"{quality} is no JPEG quality"
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    luma, chroma = (
        ((torch.tensor(table) * scale + 50) // 100).clamp(1, 255) for table in (LUMA, CHROMA)
    )
    return luma, chroma


def frequency_weights(quality: int) -> Constant:
    """Weights (3, 8, 8), float64, of Y, Cb and Cr: each one's inverse quantisation table, scaled to
    a mean of 1.
    """

    def compute() -> Tensor:
        luma, chroma = quantisation_tables(quality)
        inverse = torch.stack((luma, chroma, chroma)).double().reciprocal()
        return inverse / inverse.mean((1, 2), keepdim=True)

    return Constant(compute)


def to_ycbcr(rgb: Tensor) -> Tensor:
    """Convert (..., 3, H, W) to YCbCr in the same shape, without offsets: grey has Cb = Cr = 0."""
    return torch.einsum("yc,...chw->...yhw", _YCBCR.like(rgb), rgb)


def dct_matrix() -> Tensor:
    """Matrix C (8, 8), orthonormal, float64, with a row for each frequency: C x is the DCT-II of
    x.
    """
    frequency = torch.arange(DCT_BLOCK).double()[:, None]
    place = torch.arange(DCT_BLOCK).double()
    matrix = math.sqrt(2 / DCT_BLOCK) * torch.cos(math.pi / DCT_BLOCK * (place + 0.5) * frequency)
    matrix[0] /= math.sqrt(2)
    return matrix


_YCBCR = Constant(lambda: torch.tensor(YCBCR, dtype=torch.float64))
_DCT = Constant(dct_matrix)


def dct_blocks(images: Tensor) -> Tensor:
    """Transform each 8x8 block X by the orthonormal DCT-II, C X C^T: (..., H, W) -> (..., H / 8, W
    / 8, 8, 8).
    """
    assert images.shape[-2] % DCT_BLOCK == images.shape[-1] % DCT_BLOCK == 0, (
        f"{tuple(images.shape)} is no whole blocks"
    )
    blocks = images.unflatten(-1, (-1, DCT_BLOCK)).unflatten(-3, (-1, DCT_BLOCK)).transpose(-3, -2)
    dct = _DCT.like(images)
    return dct @ blocks @ dct.T


def frequency_error(
    predicted: Tensor, target: Tensor, weights: Constant, by_sample: bool = False
) -> Tensor:
    """Mean over images (`by_sample`: of each, (B,)), Y, Cb and Cr, blocks, frequencies of the
    weighted squared error.

    predicted, target: (B, 3, H, W), H and W in multiples of 8; weights: (3, 8, 8). In float32 or
    better, under autocast too.
    """
    dtype = torch.promote_types(wide_dtype(predicted), target.dtype)
    with without_autocast(predicted):
        # (B, 3, H / 8, W / 8, 8, 8)
        coefficients = dct_blocks(to_ycbcr(predicted.to(dtype) - target.to(dtype)))
        squared = weights.like(coefficients)[:, None, None] * coefficients.square()
        if by_sample:
            return squared.flatten(1).mean(1)
        return squared.mean()
