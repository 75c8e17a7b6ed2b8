"""Which tokens see which, in a network that is trained block by block (Arriola et al. 2025, arXiv:2503.09573, sec. 3).

Rows are tokens that ask, columns tokens that are asked. One mask serves all samples, layers and heads.
"""

from __future__ import annotations

import torch
from torch import Tensor


def block_causal_mask(
    length: int, block_size: int, first: int = 0, device: torch.device | None = None
) -> Tensor | None:
    """Of tokens first .. first + length - 1 over all from 0 on, (length, first + length) bool; None where all see all.

    A token sees its own block and all earlier ones.
    """
    end = first + length
    if first // block_size == (end - 1) // block_size:
        return None
    block = torch.arange(end, device=device) // block_size
    return block[None] <= block[first:, None]


def two_copy_mask(length: int, block_size: int, device: torch.device | None = None) -> Tensor:
    """Of a clean copy of a sequence followed by a noisy one, (2 length, 2 length) bool.

    Clean block b sees clean blocks <= b; noisy block b sees clean blocks < b and itself.
    """
    block = torch.arange(length, device=device) // block_size
    asking, asked = block[:, None], block[None]
    clean = torch.cat((asked <= asking, torch.zeros_like(asked == asking)), dim=1)
    noisy = torch.cat((asked < asking, asked == asking), dim=1)
    return torch.cat((clean, noisy))
