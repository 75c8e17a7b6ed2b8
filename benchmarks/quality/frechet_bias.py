"""Bias of a Frechet distance by the number of images: of points of N(0, I) to N(0, I), which is 0.

python benchmarks/quality/frechet_bias.py [--dims 64 768 2048] [--counts 1000 2000 ...]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.quality.features import moments


def frechet_to_normal(dim: int, num: int, generator: torch.Generator) -> float:
    """Return the distance of `num` points of N(0, I) to N(0, I): |m|^2 + tr(I + S - 2 S^1/2)."""
    mean, covariance = moments(torch.randn(num, dim, generator=generator, dtype=torch.float64))
    roots = torch.linalg.eigvalsh(covariance).clamp(min=0).sqrt()
    return float(mean.square().sum() + dim + covariance.trace() - 2 * roots.sum())


def main() -> None:
    """Print the distances, and report them over dim (dim + 5) / (4 num)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 768, 2048])
    parser.add_argument("--counts", nargs="+", type=int, default=[1000, 2000, 5000, 10_000, 50_000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for dim in options.dims:
        ratios = []
        for num in options.counts:
            distance = frechet_to_normal(dim, num, generator)
            print(f"| {dim} | {num:,} | {distance:.4g} |", flush=True)
            ratios.append(distance * 4 * num / (dim * (dim + 5)))
        report(f"Frechet distance of {dim} features, over its bias of many images", ratios)


if __name__ == "__main__":
    main()
