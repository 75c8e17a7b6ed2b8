"""Some rows of every sample, picked by index: a batch's masked tokens, say, of which samples have different numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The true entries of a mask as indices, filled up to the longest sample's number of them."""

    index: Tensor
    """(B, Q) int64, ascending; Q is at least 1. Fillers are indices of false entries."""
    valid: Tensor
    """(B, Q) bool: false for fillers."""


def masked_rows(mask: Tensor) -> Rows:
    """The true entries of (B, T) bool. Waits for the device, as Q depends on the mask."""
    num = mask.sum(dim=1)
    most = max(1, int(num.max()))
    index = (~mask).to(torch.int8).argsort(dim=1, stable=True)[:, :most]  # true entries first, in order
    return Rows(index, torch.arange(most, device=mask.device) < num[:, None])


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """(B, T, D) at (B, Q) -> (B, Q, D)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
