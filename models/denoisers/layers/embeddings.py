"""Sinusoidal embeddings of time and position (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

One function serves every family; their differences are parameters:

- `layout`: `interleaved` [sin, cos, sin, cos, ...], `cos_sin` [all cosines, all sines], `sin_cos` the reverse;
- `denominator`: frequencies base^(-i / half) or base^(-i / (half - 1)) for i = 0 .. half - 1, half = dim / 2;
- `base`, and `scale`, which multiplies the argument.
"""

from typing import Literal

import torch
from torch import Tensor

SinusoidLayout = Literal["interleaved", "cos_sin", "sin_cos"]
Denominator = Literal["half", "half_minus_1"]


def frequencies(
    dim: int,
    *,
    denominator: Denominator = "half",
    base: float = 10000.0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Angular frequencies of an embedding of width `dim`: (dim / 2,) float64, radians per unit, highest first.

    Raises ValueError for a width that is odd or too small for its denominator.
    """
    half = dim // 2
    steps = half if denominator == "half" else half - 1
    if dim % 2 or steps < 1:
        raise ValueError(f"a sinusoidal embedding with denominator '{denominator}' cannot have width {dim}")
    # An integer arange: DeepSpeed's zero.Init rounds floating-point ones to the training precision as they are made.
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
    """Embed any real `t`: (...,) -> (..., dim). Computed in float64, rounded once to `dtype`.

    `dtype` None: t's, but never below float32. Angles are computed in float64 because they are large: near 1000 float32
    numbers lie 6e-5 apart, and a sine of an angle in float32 errs by half of that.
    """
    omega = frequencies(dim, denominator=denominator, base=base, device=t.device)
    angles = scale * t.to(torch.float64)[..., None] * omega  # (..., dim / 2)
    dtype = torch.promote_types(t.dtype, torch.float32) if dtype is None else dtype
    sin, cos = angles.sin().to(dtype), angles.cos().to(dtype)
    if layout == "interleaved":
        return torch.stack((sin, cos), dim=-1).flatten(-2)
    return torch.cat((cos, sin) if layout == "cos_sin" else (sin, cos), dim=-1)


def table(
    length: int,
    dim: int,
    *,
    layout: SinusoidLayout = "interleaved",
    denominator: Denominator = "half",
    base: float = 10000.0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Embeddings of the positions 0 .. length - 1: (length, dim), on the CPU whatever the default device."""
    positions = torch.arange(length, device="cpu")  # on the meta device, arithmetic imports torch's compiler: 2 s
    return embed(positions, dim, layout=layout, denominator=denominator, base=base, scale=scale, dtype=dtype)


def table_2d(
    rows: int,
    columns: int,
    dim: int,
    *,
    layout: SinusoidLayout = "sin_cos",
    denominator: Denominator = "half_minus_1",
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Embeddings of a grid's cells, row by row: (rows * columns, dim); the first half of `dim` encodes the row."""

    def axis(length: int) -> Tensor:
        return table(length, dim // 2, layout=layout, denominator=denominator, base=base, dtype=dtype)

    row = axis(rows)[:, None].expand(-1, columns, -1)
    column = axis(columns)[None].expand(rows, -1, -1)
    return torch.cat((row, column), dim=-1).flatten(0, 1)


def longest_wavelength(dim: int, *, denominator: Denominator = "half", base: float = 10000.0) -> float:
    """Number of positions until the slowest pair of an embedding repeats: 2 pi / its frequency."""
    return 2 * torch.pi / frequencies(dim, denominator=denominator, base=base)[-1].item()
