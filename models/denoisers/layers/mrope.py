"""Rotary positions on several axes (M-RoPE, Wang et al. 2024, arXiv:2409.12191, section 2.1).

A head's entries are divided into one run for each axis (text, row, column); a run is turned by the position on its
axis, in pairs of neighbours. T tokens, A axes, K width of a head.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from denoisers.layers.fixed_table import FixedTable
from denoisers.layers.rope import Rotation, rotation


class AxisTable(FixedTable):
    """Cosines and sines of the positions 0 .. length - 1, looked up rather than computed in every forward pass."""

    def __init__(self, length: int, width: int, base: float) -> None:
        turns = rotation(torch.arange(length, device="cpu"), width, base, dtype=torch.float64)
        super().__init__(torch.cat((turns.cos, turns.sin), dim=-1))  # (length, width)

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        """Look up positions (...,) int64: two (..., width / 2)."""
        cos, sin = self.values(dtype)[positions].chunk(2, dim=-1)
        return Rotation(cos, sin)


class MRoPE(nn.Module):
    """Rotations of tokens that have a position on each of several axes."""

    def __init__(self, lengths: Sequence[int], widths: Sequence[int], base: float = 10000.0) -> None:
        """`lengths` are the numbers of positions by axis, `widths` the numbers of a head's entries."""
        super().__init__()
        self.axes = nn.ModuleList(AxisTable(length, width, base) for length, width in zip(lengths, widths, strict=True))

    def forward(self, positions: Tensor, dtype: torch.dtype = torch.float32) -> Rotation:
        """Look up positions (B, T, A) int64: two (B, 1, T, K / 2), the same for all heads."""
        tables = cast("list[AxisTable]", list(self.axes))
        by_axis = [table(at, dtype) for table, at in zip(tables, positions.unbind(-1), strict=True)]
        cos, sin = (torch.cat(each, dim=-1)[:, None] for each in zip(*by_axis, strict=True))
        return Rotation(cos, sin)
