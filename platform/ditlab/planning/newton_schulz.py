"""Operations of Muon's Newton-Schulz iterations (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from denoisers.parameter_roles import ParameterRole

NUM_ITERATIONS = 5
"""As many as `engine.optimisers.newton_schulz` does."""


def newton_schulz_flops(shape: Sequence[int], role: ParameterRole) -> int:
    """Count the operations of orthogonalising a parameter of a shape, each of its matrices by itself.

    An iteration of a matrix (s, l), s the shorter side, takes x x^T, the square of that, and its product with x.
    """
    rows = shape[1 if role.is_transposed else 0] // role.num_parts
    short, long = sorted((rows, math.prod(shape) // (rows * role.num_parts)))
    return NUM_ITERATIONS * role.num_parts * 2 * short * short * (2 * long + short)
