"""Bounds of a proof's comparisons, derived from the arithmetic that is compared, and comparisons to the bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ditlab.checking.prove.findings import ProofComparison

MARGIN = 4.0
UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Unit roundoff, relative: half of the distance of neighbouring numbers, of which weights have lost one already."""
FLOAT32 = UNITS[torch.float32]


def joint_norm(parts: Iterable[Tensor]) -> float:
    """Return the L2 norm over all values of some tensors, summed in float64."""
    return float(sum(float(each.double().square().sum()) for each in parts)) ** 0.5


def stored_dtype(values: Tensor) -> torch.dtype:
    """Return the coarsest precision that holds all of some float32 values exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).to(values.dtype), values):
            return dtype
    return torch.float32


def exact(phase: str, what: str, num_differing: int, num: int, unit: str, where: str = "") -> ProofComparison:
    """Return a comparison that holds where none of `num` things differ; `where` names the first that does."""
    return ProofComparison(phase, what, float(num_differing), 0.0, where or f"{num:,} {unit} to the bit")


def equal_values(one: Tensor, two: Tensor) -> bool:
    """Return True if two tensors are equal to the bit; NaN is equal to itself."""
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(_bits(one), _bits(two))


def _bits(values: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(whole[values.element_size()]) if values.is_floating_point() else values
