"""Gradient against differences of the loss: what autograd does not see is missed by every reading that uses it.

A branch that is detached inside the network has no gradient in a plain reading either. The loss itself still moves when
its weights do: along one random direction v over all weights, in float64,

    g . v = (L(w + h v) - L(w - h v)) / 2 h + O(h^2).

Halving h takes three quarters of the second-order rest away, so that two widths show it; what is left is the rounding
of L, over h. One direction over all weights costs five gradients of a micro-batch; only where it is off is each module
taken alone.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.reading import PlainMicroBatch, PlainReader
from ditlab.checking.prove.records import by_module
from ditlab.checking.prove.tolerances import MARGIN
from ditlab.inputs.noise import derived_seed

WIDTH = 1e-6
"""Width h: standard deviation of a weight's displacement. On the families' smallest networks the rest is then 6e-11 to
1e-7 of a slope near 1, and the rounding about as small; ten times the width has 100 times the rest."""
ROUNDING = 2.0**-53
ROUNDINGS = 100.0
"""Roundings of a loss in float64, as a multiple of its unit: 2 to 16 were seen, and a deeper network has more."""


def compare_differences(
    reader: PlainReader, micro_batches: Sequence[PlainMicroBatch], weights: Mapping[str, Tensor], seed: int
) -> Iterator[Compared]:
    """Yield the comparison of the plain gradient with differences of the loss, by module where the whole is off."""
    micro = micro_batches[:1]
    base = reader.gradient(micro, weights, torch.float64)
    names = list(base.gradients)
    whole = _compared(reader, micro, weights, base.gradients, names, seed, "")
    if whole.holds:
        yield whole
        return
    for module, own in by_module(names).items():
        yield _compared(reader, micro, weights, base.gradients, own, seed, module)


def _compared(
    reader: PlainReader, micro: Sequence[PlainMicroBatch], weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor], names: Sequence[str], seed: int, module: str,
) -> Compared:  # fmt: skip
    """Compare the slope of the loss along a random direction over the named weights."""
    directions = {}
    for name in names:
        generator = torch.Generator().manual_seed(derived_seed(seed, "prove", "direction", name))
        directions[name] = torch.randn(weights[name].numel(), generator=generator, dtype=torch.float64)
    slopes, largest = [], 0.0
    for width in (WIDTH, WIDTH / 2):
        losses = []
        for sign in (1, -1):
            moved = {name: weights[name].double() + sign * width * each for name, each in directions.items()}
            losses += reader.gradient(micro, {**weights, **moved}, torch.float64).totals
        slopes.append((losses[0] - losses[1]) / (2 * width))
        largest = max(map(abs, losses))
    plain = sum(float(gradients[name] @ each) for name, each in directions.items())
    bound = MARGIN * (abs(slopes[0] - slopes[1]) + ROUNDINGS * ROUNDING * largest / WIDTH)
    distance = abs(slopes[1] - plain)
    detail = f"slope {plain:.6g} by autograd, {slopes[1]:.6g} by the loss"
    # Relative to what autograd has, so that modules without any gradient, behind which the branch was cut, come first.
    size = max(abs(plain), bound)
    return Compared("gradient", "against differences of the loss", distance, bound, detail, module, size)
