"""Rows of a data set beside the training loop: for samplers and evaluators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denoisers.contract.noise import NoiseSource

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class RealRows:
    """Rows of a data set, both as batch fields and as the store's columns."""

    batch: Mapping[str, Tensor]
    """The model's fields, (num, *shape) each, on its device."""
    columns: Mapping[str, np.ndarray]
    """The store's other columns, (num, *shape) each; class names in place of class indices that have names."""
    names: Mapping[str, Sequence[str]]
    """Names of the entries along a column's last axis, for the columns that have them: those of motifs."""
    noise: NoiseSource
    """Fixed draws of these rows: the same in every run, whatever the batch size."""


@dataclass(frozen=True)
class RowSet:
    """Rows of a data set in a fixed order, which can be iterated any number of times."""

    num: int
    batches: Callable[[int], Iterator[RealRows]]
    """Iterate over all rows in batches of the given size; the last one may be smaller."""
