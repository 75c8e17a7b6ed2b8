"""Bounds of a proof's comparisons, derived from the arithmetic that is compared.

Two computations of one quantity in a precision with unit roundoff u differ by roundings alone. How many there are and
how far a network enlarges them is not known beforehand, but two plain readings show it: one in float64, one in the
run's own precision. Their distance d is the rounding error of a computation of that precision. The engine's own error
is another draw of the same size: its sums have another order (partitions, buckets, workers, fused or compiled kernels).
Hence, for a quantity of a module (its gradient, by the L2 norm over its values):

    |engine - float64| <= MARGIN * max(d, r * a, u * a)

where a is the mean over micro-batches of the norms of their own gradients (what a sum rounds relative to, as the
gradients of micro-batches may cancel) and r is d / a over all modules together: a module of few values may have a small
d by luck. MARGIN is 4: an error is a sum of many roundings of random sign, close to a normal variable in each value, so
that the norm over a module's values is hardly ever above twice its expectation, and d hardly ever below half of it.

What follows the gradient (norm, clipping, moments, update, average) is read from the engine's own gradient and state,
in float64. There the roundings can be counted, all in float32 with u = 2^-24: each term of a sum rounds relative to
itself, so that the bound is MARGIN * u * (the terms' sizes, by norm over the module); a difference of weights rounds
relative to the weights. A norm of n values in float32 is off by sqrt(n) roundings. Muon's iterations enlarge roundings
as a network does, so that two readings give their bound as above.

Losses, held-out metrics and a sample are single numbers or one tensor, bounded by MARGIN * max(d, u * a) in the same
way; two readings of one metric may agree by luck, and then d / a is taken from the metric where they agree least, but
no more than u of it. A slope of the loss, from differences over widths h and h / 2, is off by a third of what the two
differ in, and by the rounding of the loss over h (`differences.py`).

Draws, samples, weights that workers compute with, and settings of the optimiser are compared to the bit, and so is a
run that was stopped and resumed with the same run never stopped.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

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
