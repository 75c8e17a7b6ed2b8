"""Loss and gradient of the engine against two references and against differences of the loss; the gradient's norm.

What autograd does not see is missed by every reference that uses it; differences of the loss see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ditlab.checking.prove.findings import ALIKE, ProofComparison
from ditlab.checking.prove.recording import DrawKey, WholeStep, by_module
from ditlab.checking.prove.reference import ReferenceGradient, ReferenceMicroBatch, ReferenceSteps
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS, joint_norm
from ditlab.inputs.noise import derived_seed

WIDTH = 1e-6
"""Width h: standard deviation of a weight's displacement. On the families' smallest networks the rest is then 6e-11 to
1e-7 of a slope near 1, and the rounding about as small; ten times the width has 100 times the rest."""
ROUNDING = 2.0**-53
ROUNDINGS = 100.0
"""Roundings of a loss in float64, as a multiple of its unit: 2 to 16 were seen, and a deeper network has more."""


def compare_losses(
    whole: WholeStep, keys: list[DrawKey], exact: ReferenceGradient, low: ReferenceGradient, dtype: torch.dtype
) -> Iterator[ProofComparison]:
    """Yield the comparisons of each component over micro-batches, and of the mean that the run reports.

    `keys`: draw keys of the reference's micro-batches, in order.
    """
    passes = {each.key: each for each in whole.passes}
    places = [place for place, key in enumerate(keys) if key in passes]
    unit, step = UNITS[dtype], f"step {whole.step + 1}"
    for name in exact.components[0]:
        found = [passes[keys[place]].components.get(name, math.nan) for place in places]
        plain, other = ([each.components[place][name] for place in places] for each in (exact, low))
        size = math.hypot(*plain)
        bound = MARGIN * max(math.dist(plain, other), 2 * unit * size)
        yield ProofComparison("loss", name, math.dist(found, plain), bound, step, size=size)
    reported = whole.first.metrics.get("train/loss", math.nan)
    mean = sum(each.total for each in whole.passes) / max(1, len(whole.passes))
    bound = MARGIN * FLOAT32 * (abs(mean) + sum(abs(each.total) for each in whole.passes) / max(1, len(whole.passes)))
    yield ProofComparison("loss", "mean that is reported", abs(reported - mean), bound, step, size=abs(mean))


def compare_gradients(
    whole: WholeStep, exact: ReferenceGradient, low: ReferenceGradient, dtype: torch.dtype
) -> Iterator[ProofComparison]:
    """Yield the comparison of each module's gradient, in the network's order; then of the workers with each other."""
    modules = by_module(exact.gradients)
    apart = {
        module: joint_norm(low.gradients[name] - exact.gradients[name] for name in names)
        for module, names in modules.items()
    }
    sizes = {module: math.hypot(*(exact.sizes[name] for name in names)) for module, names in modules.items()}
    common = math.hypot(*apart.values()) / max(math.hypot(*sizes.values()), 1e-300)
    for module, names in modules.items():
        plain = {name: exact.gradients[name] for name in names}
        found = {name: whole.gradients.get(name, torch.zeros_like(plain[name])).double() for name in names}
        distance = joint_norm(found[name] - plain[name] for name in names)
        bound = MARGIN * max(apart[module], max(common, UNITS[dtype]) * sizes[module])
        size, own = joint_norm(plain.values()), joint_norm(found.values())
        detail = f"step {whole.step + 1}; norm {own:.3g} in place of {size:.3g}"
        yield ProofComparison("gradient", "by module", distance, bound, detail, module, size)
    differing = whole.disagreeing
    detail = f"step {whole.step + 1}: first {differing[0]}" if differing else ""
    yield ProofComparison("gradient", ALIKE, float(len(differing)), 0.0, detail)


def compare_norm(whole: WholeStep) -> Iterator[ProofComparison]:
    """Yield the comparison of the reported norm with that of the engine's own gradient, and its phase is `norm`."""
    norm, num = joint_norm(whole.gradients.values()), sum(each.numel() for each in whole.gradients.values())
    reported = whole.first.metrics.get("train/grad_norm", math.nan)
    step, bound = f"step {whole.step + 1}", norm_bound(norm, num)
    yield ProofComparison("norm", "before clipping", abs(reported - norm), bound, step, size=norm)


def norm_bound(norm: float, num: int) -> float:
    """Return by how much a norm of so many values may be off in float32."""
    return MARGIN * FLOAT32 * norm * max(1.0, math.sqrt(num))


def compare_differences(
    reader: ReferenceSteps, micro_batches: Sequence[ReferenceMicroBatch], weights: Mapping[str, Tensor], seed: int
) -> Iterator[ProofComparison]:
    """Yield the comparison of the plain gradient with differences of the loss, by module where the whole is off."""
    micro = micro_batches[:1]
    base = reader.gradient(micro, weights, torch.float64)
    names = list(base.gradients)
    whole = _compare_slope(reader, micro, weights, base.gradients, names, seed, "")
    if whole.holds:
        yield whole
        return
    for module, own in by_module(names).items():
        yield _compare_slope(reader, micro, weights, base.gradients, own, seed, module)


def _compare_slope(
    reader: ReferenceSteps, micro: Sequence[ReferenceMicroBatch], weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor], names: Sequence[str], seed: int, module: str,
) -> ProofComparison:  # fmt: skip
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
    return ProofComparison("gradient", "against differences of the loss", distance, bound, detail, module, size)
