"""Tensors that no module holds: constants, dtypes under autocast on every device, rows gathered by
index.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import ModuleGroups

if TYPE_CHECKING:
    import numpy as np


class Constant:
    """Tensor that is computed once, on the CPU, and copied once to every device and dtype that
    reads it.
    """

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._compute = compute
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @cached_property
    def values(self) -> Tensor:
        """The tensor itself, on the CPU."""
        with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
            return self._compute()

    def like(self, tensor: Tensor) -> Tensor:
        """Return the constant on a tensor's device, in its dtype."""
        return self.on(tensor.device, tensor.dtype)

    def on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the constant on a device, in a dtype: not to be written to."""
        key = (device, dtype)
        if key not in self._copies:
            with torch.inference_mode(False), torch.no_grad():
                self._copies[key] = self.values.to(device, dtype)
        return self._copies[key]


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return the values of a tensor of any device, without their gradient; bfloat16 has no such
    values.
    """
    values: np.ndarray = tensor.detach().cpu().numpy()
    return values


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Return a tensor's dtype, but float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 or better."""
    return tensor.to(wide_dtype(tensor))


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Shape values (B,) to broadcast against a tensor (B, ...)."""
    return values.view(-1, *(1,) * (like.ndim - 1))


def child_groups(network: nn.Module) -> ModuleGroups:
    """Return `Network.components` with a group for each child that has parameters."""
    return {
        name: [child]
        for name, child in network.named_children()
        if next(child.parameters(), None) is not None
    }


def product_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with a weight: autocast's on its device, or the weight's
    own.
    """
    device = weight.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products of tensors on this one's device have the tensors'
    dtype.
    """
    device = tensor.device.type
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


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
    # true entries first, in order
    index = (~mask).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
    return Rows(index, torch.arange(most, device=mask.device) < num[:, None])


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gather the rows of (B, T, D) at (B, Q): (B, Q, D)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
