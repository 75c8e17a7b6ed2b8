"""Classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598), on velocities."""

from collections.abc import Callable

import torch
from torch import Tensor

Conditional = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (batch, ...), t (batch,), label (batch,)) -> prediction in x's shape."""


def guided(predict: Conditional, x: Tensor, t: Tensor, label: Tensor, null: int, scale: float) -> Tensor:
    """v_null + scale (v_label - v_null), both halves in one pass; scale 1 is the plain conditional prediction."""
    if scale == 1:
        return predict(x, t, label)
    both = predict(torch.cat((x, x)), torch.cat((t, t)), torch.cat((label, torch.full_like(label, null))))
    with_label, without = both.chunk(2)
    return without + scale * (with_label - without)
