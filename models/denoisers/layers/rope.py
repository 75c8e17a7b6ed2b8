"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864, section 3.4.2).

T tokens, K width of a head. The pairs of a head's entries are a matter of layout:

- `halves`: j and j + K / 2, as in GPT-NeoX;
- `neighbours`: 2j and 2j + 1, as in the paper.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from denoisers.layers.embeddings import frequencies

PairLayout = Literal["halves", "neighbours"]


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each pair of each token; each (T, K / 2)."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Rotation:
    """Angles m base^(-2j / width) of pair j of the token at position m: positions (T,) -> two (T, width / 2).

    Computed in float64 and rounded once. Raises ValueError for an odd width.
    """
    omega = frequencies(width, base=base, device=positions.device)
    angles = positions.to(torch.float64)[:, None] * omega
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x: Tensor, rope: Rotation, layout: PairLayout = "halves") -> Tensor:
    """Turn queries or keys, (..., T, K) -> the same shape and dtype; computed in the rotation's dtype.

    A rotation's tensors may have leading axes too: they are broadcast against those of x.
    """
    wide = x.to(rope.cos.dtype)
    first, second = wide.chunk(2, dim=-1) if layout == "halves" else wide.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = first * rope.cos - second * rope.sin, first * rope.sin + second * rope.cos
    turned = torch.cat(pairs, dim=-1) if layout == "halves" else torch.stack(pairs, dim=-1).flatten(-2)
    return turned.to(x.dtype)
