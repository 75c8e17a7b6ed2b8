"""Comparisons of a run's life: within a bound, and to the bit."""

import torch
from torch import Tensor

from ditlab.checking.prove.findings import Compared


def bounded(phase: str, what: str, distance: float, bound: float, note: str = "") -> Compared:
    """Return a comparison that holds where a distance is at most its bound; NaN is not."""
    return Compared(phase, what, distance, bound, note)


def exact(phase: str, what: str, num_differing: int, num: int, unit: str, where: str = "") -> Compared:
    """Return a comparison that holds where none of `num` things differ; `where` names the first that does."""
    return bounded(phase, what, float(num_differing), 0.0, where or f"{num:,} {unit} to the bit")


def equal_values(one: Tensor, two: Tensor) -> bool:
    """Return True if two tensors are equal to the bit; NaN is equal to itself."""
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(_bits(one), _bits(two))


def _bits(values: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(whole[values.element_size()]) if values.is_floating_point() else values
