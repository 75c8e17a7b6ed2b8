"""Rows of every sample, gathered by index: a batch's masked tokens, say, which differ in number between samples."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Indices of a mask's true entries, padded to the largest number that a sample has."""

    index: Tensor
    """(B, Q) int64, ascending; Q is at least 1. Padding holds indices of false entries."""
    valid: Tensor
    """(B, Q) bool: false for padding."""


def masked_rows(mask: Tensor) -> Rows:
    """Index the true entries of (B, T) bool. Waits for the device, as Q depends on the mask."""
    num = mask.sum(dim=1)
    most = max(1, int(num.max()))
    index = (~mask).to(torch.int8).argsort(dim=1, stable=True)[:, :most]  # true entries first, in order
    return Rows(index, torch.arange(most, device=mask.device) < num[:, None])


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather the rows of (B, T, D) at (B, Q): (B, Q, D)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
