"""Matrices that Muon orthogonalises: what parameters of two axes or more consist of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ditlab_models.parameters import ParameterRole

MOMENTUM = ("momentum",)
"""Names of the moments of the parameters that are orthogonalised."""
NUM_ITERATIONS = 5


class Matrices(NamedTuple):
    """Parameter of two axes or more: one matrix, or several of equal size."""

    shape: tuple[int, ...]
    role: ParameterRole

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Rows of each matrix."""
        return self.shape[1 if self.role.is_transposed else 0] // self.role.num_parts

    @property
    def num_columns(self) -> int:
        """Columns of each matrix."""
        return self.numel // (self.num_rows * self.role.num_parts)

    @property
    def flops(self) -> int:
        """Floating-point operations of orthogonalising it, each of its matrices by itself. An iteration of a matrix
        (s, l), s the shorter side, takes x x^T, the square of that, and its product with x."""
        short, long = sorted((self.num_rows, self.num_columns))
        return NUM_ITERATIONS * self.role.num_parts * 2 * short * short * (2 * long + short)
