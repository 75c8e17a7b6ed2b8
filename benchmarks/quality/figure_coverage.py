"""Coverage of the 95 % intervals of image figures, over what they promise; and FID's bias by the
number of images.

    python benchmarks/quality/figure_coverage.py [--repeats 2000] [--fresh 20000] [--only
        neighbours]

Gaussian features, real ones from N(0, 1) and generated ones of another mean and deviation along the
first axis, are measured over and over. The truth of KID and CMMD, which are unbiased, is the mean
of estimates from ten times as many points; that of the figures of neighbours is their mean over
`--fresh` fresh sets of the same size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.intervals import Interval
from ditlab.quality.features import moments
from ditlab_addons.figures.images.estimates import (
    CONFIDENCE,
    _distances,
    _neighbours,
    gaussian,
    mmd,
    neighbour_figures,
    polynomial,
)

BLOCKS = 10
"""Parts of the repeats, each of which gives a ratio."""
KERNELS = {"kid": polynomial, "cmmd's kernel": gaussian}
SETS = (("kid", 1.0, 0.8), ("kid", 0.3, 1.0), ("kid", 0.0, 1.0), ("cmmd's kernel", 1.0, 0.8))
"""Kernel, shift and deviation of the generated features, 200 of 64 on both sides."""


def pairs(
    seed: int, dim: int, num: int, shift: float, scale: float
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Draw real and generated features, (num, dim) each."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        real, generated = torch.randn(2, num, dim, generator=generator, dtype=torch.float64)
        return real, scale * generated + shift * torch.eye(1, dim, dtype=torch.float64)

    return draw


def report_coverage(name: str, found: Sequence[Interval], truth: float) -> None:
    """Print the share of intervals that hold the truth, and report it over the confidence."""
    held = torch.tensor([each.low <= truth <= each.high for each in found]).double()
    print(f"{name}: truth {truth:.4g}, held by {float(held.mean()):.1%} of {len(found):,}")
    report(
        f"{name}, over {CONFIDENCE:g}",
        [float(each.mean()) / CONFIDENCE for each in held.tensor_split(BLOCKS)],
    )


def kernel_coverage(repeats: int) -> None:
    """Print the coverage of squared discrepancies."""
    for name, shift, scale in SETS:
        draw, fresh = pairs(0, 64, 200, shift, scale), pairs(1, 64, 2000, shift, scale)
        truth = 0.0
        if shift or scale != 1:
            num = max(20, repeats // 50)
            truth = sum(mmd(*fresh(), KERNELS[name]).mean for _ in range(num)) / num
        found = [mmd(*draw(), KERNELS[name]) for _ in range(repeats)]
        report_coverage(f"{name}, shift {shift:g}, deviation {scale:g}", found, truth)


def neighbour_coverage(
    repeats: int, fresh: int, dim: int, num: int, shift: float, scale: float
) -> None:
    """Print the coverage of precision, recall, density and coverage."""
    draw, others = pairs(0, dim, num, shift, scale), pairs(1, dim, num, shift, scale)
    values = []
    for _ in range(0, fresh, 100):
        real, generated = map(torch.stack, zip(*(others() for _ in range(100)), strict=True))
        values.append(_neighbours(*_distances(real, generated)))
    truth = torch.cat(values).mean(0)
    found = [neighbour_figures(*draw()) for _ in range(repeats)]
    for place, name in enumerate(found[0]):
        about = f"{name} of {num} and {num} points of {dim} features"
        report_coverage(about, [each[name] for each in found], float(truth[place]))


def frechet_bias(dims: Sequence[int], counts: Sequence[int]) -> None:
    """Print the distance of `num` points of N(0, I) to N(0, I), which is 0: |m|^2 + tr(I + S - 2
    S^1/2).
    """
    generator = torch.Generator().manual_seed(0)
    for dim in dims:
        for num in counts:
            mean, covariance = moments(
                torch.randn(num, dim, generator=generator, dtype=torch.float64)
            )
            roots = torch.linalg.eigvalsh(covariance).clamp(min=0).sqrt()
            distance = float(mean.square().sum() + dim + covariance.trace() - 2 * roots.sum())
            print(f"| {dim} | {num:,} | {distance:.4g} |", flush=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--fresh", type=int, default=20_000)
    parser.add_argument("--only", choices=("kernel", "neighbours", "bias"))
    parser.add_argument(
        "--features",
        nargs=4,
        type=float,
        default=(8, 100, 1.0, 0.9),
        metavar=("DIM", "NUM", "D", "S"),
    )
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 768, 2048])
    parser.add_argument("--counts", nargs="+", type=int, default=[1000, 2000, 5000, 10_000, 50_000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "bias"):
        frechet_bias(options.dims, options.counts)
    if options.only in (None, "kernel"):
        kernel_coverage(options.repeats)
    if options.only in (None, "neighbours"):
        dim, num, *rest = options.features
        neighbour_coverage(options.repeats, options.fresh, int(dim), int(num), *rest)
    print(f"figures are coverage over {CONFIDENCE:g}: a ratio of 1 is what was promised")


if __name__ == "__main__":
    main()
