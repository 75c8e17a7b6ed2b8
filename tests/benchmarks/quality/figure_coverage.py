"""How often the stated 95 % intervals of image figures hold the truth, and how far FID lies above it by sample count.

`python tests/benchmarks/quality/figure_coverage.py --repeats 2000` draws Gaussian features, measures them, and prints
the share of intervals that hold the truth: of KID and CMMD, which are unbiased, the mean of estimates of ten times as
many points, of the figures of neighbours the mean over `--fresh` fresh sets of the same size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from ditlab.intervals import Interval
from ditlab.quality.estimates import gaussian, mmd, neighbour_figures, neighbour_values
from ditlab.quality.features import moments

Pair = Callable[[], tuple[Tensor, Tensor]]


def pairs(seed: int, dim: int, num: int, shift: float, scale: float) -> Pair:
    """Draw real features from N(0, 1) and generated ones from N(shift e_1, scale^2), (num, dim) each."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        real, generated = torch.randn(2, num, dim, generator=generator, dtype=torch.float64)
        return real, scale * generated + shift * torch.eye(1, dim, dtype=torch.float64)

    return draw


def share(found: list[Interval], truth: float) -> float:
    return sum(each.low <= truth <= each.high for each in found) / len(found)


def kernel_coverage(repeats: int) -> None:
    for name, kernel, dim, num, shift, scale in (
        ("kid", None, 64, 200, 1.0, 0.8),
        ("kid", None, 64, 200, 0.3, 1.0),
        ("kid", None, 64, 200, 0.0, 1.0),
        ("cmmd's kernel", gaussian, 64, 200, 1.0, 0.8),
    ):
        options = {} if kernel is None else {"kernel": kernel}
        draw, fresh = pairs(0, dim, num, shift, scale), pairs(1, dim, num * 10, shift, scale)
        truth = torch.tensor([mmd(*fresh(), **options).mean for _ in range(max(20, repeats // 50))])
        found = [mmd(*draw(), **options) for _ in range(repeats)]
        mean = 0.0 if shift == 0 and scale == 1 else float(truth.mean())
        print(f"| {name} | {dim} | {num} | {shift:g}, {scale:g} | {mean:.4g} | {share(found, mean):.3f} |", flush=True)


def neighbour_coverage(repeats: int, fresh: int, dim: int, num: int, shift: float, scale: float) -> None:
    draw, others = pairs(0, dim, num, shift, scale), pairs(1, dim, num, shift, scale)
    values = []
    for _ in range(0, fresh, 100):
        real, generated = map(torch.stack, zip(*(others() for _ in range(100)), strict=True))
        values.append(neighbour_values(real, generated))
    truth = torch.cat(values).mean(0)
    found = [neighbour_figures(*draw()) for _ in range(repeats)]
    for place, name in enumerate(found[0]):
        mean = float(truth[place])
        held = share([each[name] for each in found], mean)
        print(f"| {name} | {dim} | {num} | {shift:g}, {scale:g} | {mean:.4f} | {held:.3f} |", flush=True)


def frechet_bias(dims: list[int], counts: list[int]) -> None:
    """Print the distance of `num` points of N(0, I) to N(0, I), which is 0: |m|^2 + tr(I + S - 2 S^1/2)."""
    generator = torch.Generator().manual_seed(0)
    for dim in dims:
        for num in counts:
            mean, covariance = moments(torch.randn(num, dim, generator=generator, dtype=torch.float64))
            roots = torch.linalg.eigvalsh(covariance).clamp(min=0).sqrt()
            distance = float(mean.square().sum() + dim + covariance.trace() - 2 * roots.sum())
            print(f"| {dim} | {num:,} | {distance:.4g} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--fresh", type=int, default=20_000)
    parser.add_argument("--only", choices=("kernel", "neighbours", "bias"))
    parser.add_argument("--features", nargs=4, type=float, default=(8, 100, 1.0, 0.9), metavar=("DIM", "NUM", "D", "S"))
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 768, 2048])
    parser.add_argument("--counts", nargs="+", type=int, default=[1000, 2000, 5000, 10_000, 50_000])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only in (None, "kernel"):
        kernel_coverage(given.repeats)
    if given.only in (None, "neighbours"):
        dim, num, *rest = given.features
        neighbour_coverage(given.repeats, given.fresh, int(dim), int(num), *rest)
    if given.only in (None, "bias"):
        frechet_bias(given.dims, given.counts)
