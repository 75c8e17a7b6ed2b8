"""Embeddings: sinusoids of time and position, class labels, patches of images, and fixed tables.

Sinusoids are those of Vaswani et al. 2017 (arXiv:1706.03762, section 3.5); the embedding of time is
a sinusoid, then two linear layers (Peebles and Xie 2023, arXiv:2212.09748). Labels have a null
class for classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598). Patches are those of
Dosovitskiy et al. 2021 (arXiv:2010.11929).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.tensors import wide_dtype

SinusoidLayout = Literal["interleaved", "cos_sin", "sin_cos"]
Denominator = Literal["half", "half_minus_1"]
GridOrder = Literal["row_first", "column_first"]


def frequencies(
    dim: int,
    *,
    denominator: Denominator = "half",
    base: float = 10000.0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Angular frequencies of an embedding of width `dim`: (dim / 2,) float64, radians per unit,
    highest first.

    Raises ValueError for a width that is odd or too small for its denominator.
    """
    half = dim // 2
    steps = half if denominator == "half" else half - 1
    if dim % 2 or steps < 1:
        raise ValueError(
            f"a sinusoidal embedding with denominator '{denominator}' cannot have width {dim}"
        )
    # An integer arange: DeepSpeed's zero.Init rounds floating-point ones to the training precision
    # as they are made.
    i = torch.arange(half, device=device).to(torch.float64)
    return torch.pow(base, -i / steps)


def embed(
    t: Tensor,
    dim: int,
    *,
    layout: SinusoidLayout = "interleaved",
    denominator: Denominator = "half",
    base: float = 10000.0,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Embed any real `t`: (...,) -> (..., dim). Computed in float64, as angles are large, and
    rounded once to `dtype`.

    `dtype` None: t's, but never below float32.
    """
    omega = frequencies(dim, denominator=denominator, base=base, device=t.device)
    angles = scale * t.to(torch.float64)[..., None] * omega  # (..., dim / 2)
    if dtype is None:
        dtype = wide_dtype(t)
    sin = angles.sin().to(dtype)
    cos = angles.cos().to(dtype)
    if layout == "interleaved":
        return torch.stack((sin, cos), dim=-1).flatten(-2)
    if layout == "cos_sin":
        return torch.cat((cos, sin), dim=-1)
    return torch.cat((sin, cos), dim=-1)


def table(
    length: int, dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Embeddings of the positions 0 .. length - 1: (length, dim), on the CPU whatever the default
    device.
    """
    # on the meta device, arithmetic imports torch's compiler: 2 s
    positions = torch.arange(length, device="cpu")
    return embed(positions, dim, base=base, dtype=dtype)


def table_2d(
    rows: int,
    columns: int,
    dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    order: GridOrder = "row_first",
) -> Tensor:
    """Embeddings of a grid's cells, row by row: (rows * columns, dim); the first half of `dim`
    encodes the row.

    Under `column_first` it encodes the column, and the denominator is the half, as in
    facebookresearch/DiT.
    """
    denominator: Denominator = "half_minus_1" if order == "row_first" else "half"
    row, column = (
        embed(
            torch.arange(length, device="cpu"),
            dim // 2,
            layout="sin_cos",
            denominator=denominator,
            dtype=dtype,
        )
        for length in (rows, columns)
    )
    cells = (row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1))
    if order == "column_first":
        cells = cells[::-1]
    return torch.cat(cells, dim=-1).flatten(0, 1)


class TimeEmbedding(nn.Module):
    """Sinusoid of width `dim` -> Linear -> SiLU -> Linear, both linear layers `width` wide."""

    def __init__(
        self,
        dim: int,
        width: int,
        scale: float = 1.0,
        layout: SinusoidLayout = "sin_cos",
        denominator: Denominator = "half_minus_1",
    ) -> None:
        super().__init__()
        self.dim = dim
        self.scale = scale
        self.layout: SinusoidLayout = layout
        self.denominator: Denominator = denominator
        self.hidden = nn.Linear(dim, width)
        self.out = nn.Linear(width, width)

    def sinusoid(self, t: Tensor) -> Tensor:
        """Embed times without weights: (batch,) -> (batch, dim), rounded once, to the weights'
        dtype.
        """
        dtype = self.hidden.weight.dtype
        return embed(
            t,
            self.dim,
            layout=self.layout,
            denominator=self.denominator,
            scale=self.scale,
            dtype=dtype,
        )

    def forward(self, t: Tensor) -> Tensor:
        """Embed times, (batch,) in the unit that the network was trained on -> (batch, width) in
        the weights' dtype.
        """
        return self.out(functional.silu(self.hidden(self.sinusoid(t))))


class LabelEmbedding(nn.Module):
    """A learned vector per class, and one for the null class, whose index is `num_classes`."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.null = num_classes
        self.vectors = nn.Embedding(num_classes + 1, width)
        # As facebookresearch/DiT: torch's N(0, 1) would drown the time embedding that these vectors
        # are added to.
        nn.init.normal_(self.vectors.weight, std=0.02)

    def forward(self, label: Tensor) -> Tensor:
        """Look up class indices, (batch,) int64 -> (batch, width)."""
        return self.vectors(label)


def drop_labels(label: Tensor, uniform: Tensor, rate: float, null: int) -> Tensor:
    """Replace labels by the null class where `uniform` (U[0, 1), same shape) is below `rate`."""
    return torch.where(uniform < rate, null, label)


def add_label(condition: Tensor, embedding: LabelEmbedding | None, label: Tensor | None) -> Tensor:
    """Add the class embedding to the time embedding, (batch, width) each: that of the null class
    without a label.
    """
    if embedding is None:
        return condition
    if label is None:
        label = torch.full(
            (len(condition),), embedding.null, dtype=torch.int64, device=condition.device
        )
    return condition + embedding(label)


def patchify(image: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches: (B, C, rows * P, columns * P) -> (B, N, P * P * C); a patch by row,
    column, channel.
    """
    # (B, C, rows, P, columns, P)
    patches = image.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))
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


class FixedTable(nn.Module):
    """Table of float64 numbers, rounded to a dtype as it is read. No checkpoint holds it."""

    bits: Tensor

    def __init__(self, values: Tensor) -> None:
        """Keep `values`, float32 or better, on the default device."""
        super().__init__()
        # As integers: `network.bfloat16()` rounds floating-point buffers too, and `.double()` would
        # not bring the digits back. A cosine of a large position is then off by up to 2^-9.
        bits = values.to(torch.float64).contiguous().view(torch.int64)
        self.register_buffer("bits", bits.to(torch.get_default_device()), persistent=False)

    def values(self, dtype: torch.dtype) -> Tensor:
        """Return the table in `dtype`, on the network's device."""
        return self.bits.view(torch.float64).to(dtype)
