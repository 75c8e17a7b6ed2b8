"""Autocast, on every device: the meta device has none."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def product_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with a weight: autocast's on its device, or the weight's own."""
    device = weight.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products of tensors on this one's device have the tensors' dtype."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
