"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864, section 3.4.2), and on several axes
(arXiv:2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ditlab_models.layers.embeddings import FixedTable, frequencies

PairLayout = Literal["halves", "neighbours"]


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each pair of each token; each (T, K / 2)."""

    cos: Tensor
    sin: Tensor


def rotation(
    positions: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Rotation:
    """Angles m base^(-2j / width) of pair j of the token at position m: positions (T,) -> two (T,
    width / 2).

    Computed in float64 and rounded once. Raises ValueError for an odd width.
    """
    omega = frequencies(width, base=base, device=positions.device)
    angles = positions.to(torch.float64)[:, None] * omega
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x: Tensor, rope: Rotation, layout: PairLayout = "halves") -> Tensor:
    """Turn queries or keys, (..., T, K) -> the same shape and dtype; computed in the rotation's
    dtype, broadcast to x."""
    wide = x.to(rope.cos.dtype)
    if layout == "halves":
        first, second = wide.chunk(2, dim=-1)
    else:
        first, second = wide.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = first * rope.cos - second * rope.sin, first * rope.sin + second * rope.cos
    if layout == "halves":
        turned = torch.cat(pairs, dim=-1)
    else:
        turned = torch.stack(pairs, dim=-1).flatten(-2)
    return turned.to(x.dtype)


class AxisTable(FixedTable):
    """Cosines and sines of the positions 0 .. length - 1, looked up rather than computed in every
    forward pass.
    """

    def __init__(self, length: int, width: int, base: float) -> None:
        turns = rotation(torch.arange(length, device="cpu"), width, base, dtype=torch.float64)
        super().__init__(torch.cat((turns.cos, turns.sin), dim=-1))  # (length, width)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        """Look up positions (...,) int64: two (..., width / 2)."""
        cos, sin = self.values(dtype)[positions].chunk(2, dim=-1)
        return Rotation(cos, sin)


class MRoPE(nn.Module):
    """Rotations of tokens that have a position on each of several axes."""

    def __init__(
        self, lengths: Sequence[int], widths: Sequence[int], base: float = 10000.0
    ) -> None:
        """`lengths` are the numbers of positions by axis, `widths` the numbers of a head's
        entries.
        """
        super().__init__()
        self.axes = nn.ModuleList(
            AxisTable(length, width, base) for length, width in zip(lengths, widths, strict=True)
        )

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        """Look up positions (B, T, A) int64: two (B, 1, T, K / 2), the same for all heads."""
        tables = cast("list[AxisTable]", list(self.axes))
        by_axis = [table(at, dtype) for table, at in zip(tables, positions.unbind(-1), strict=True)]
        cos, sin = (torch.cat(each, dim=-1)[:, None] for each in zip(*by_axis, strict=True))
        return Rotation(cos, sin)
