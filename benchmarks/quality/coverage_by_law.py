"""How often 95 % intervals of figures of samples hold the truth, by law of the samples and their
number, and how often they are said to be doubtful.

A row is a figure and a law; under a number of samples stands the per cent of repeats whose interval
holds the truth, and in brackets the per cent of repeats with fewer than FEWEST_DF degrees of
freedom. Image figures are of NUM_FEATURES features, real and generated ones of about one law; the
truth of KID, which is unbiased, is its mean over large sets, that of the others their mean over
`--fresh` fresh sets of the same size. Texts have lengths and nats whose truth is known or a mean
over a million texts.

    python benchmarks/quality/coverage_by_law.py [--repeats 300] [--fresh 1000]
        [--only images frechet kernel text] [--laws gaussian ...] [--samples 100 200 500]

Each part, law and number is a task of its own, on as many processes as there are CPUs. All of it
takes under 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.quality.features import frechet_of_moments, kernel_distance, moments
from ditlab_addons.figures.images.estimates import (
    FEWEST,
    _distances,
    _neighbours,
    frechet,
    mmd,
    neighbour_figures,
)
from ditlab_models.intervals import (
    FEWEST_DF,
    Estimate,
    correlation_estimate,
    mean_estimate,
    ratio_estimate,
    share_estimate,
)

NUM_FEATURES = 16
PARTS = ("images", "frechet", "kernel", "text")
NEIGHBOURS = ("precision", "recall", "density", "coverage")
LARGE = 3000
NUM_LARGE = 12
"""Points of a large set, and large sets, that KID's truth is taken from."""
NUM_REFERENCE = 20_000
"""Points of a Frechet distance's reference."""
SEPARATE = 100
"""Fresh sets at once."""
WINDOW_REPEATS = 10
"""Repeats of windows, which are cheap, over those of other figures."""
Draw = Callable[[torch.Generator, int, bool], Tensor]
"""Draws so many points, real or generated ones, (num, features) float64."""


def normal(generator: torch.Generator, num: int, dim: int = NUM_FEATURES) -> Tensor:
    """Draw standard normal points."""
    return torch.randn(num, dim, generator=generator, dtype=torch.float64)


def gaussian(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """Gaussian features; generated ones are shifted by 0.6 along the first, and narrower."""
    points = normal(generator, num)
    if is_generated:
        points *= 0.9
        points[:, 0] += 0.6
    return points


def rectified(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """Features as after a ReLU: four shared factors, noise, half of the values 0."""
    loadings = normal(torch.Generator().manual_seed(5), 4)
    points = normal(generator, num) + 0.7 * normal(generator, num, 4) @ loadings - 0.5
    return (points + 0.3 * is_generated).clamp(min=0)


def clustered(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """Six clusters of unequal sizes and widths, of which generated points lack the rarest."""
    centres = 3 * normal(torch.Generator().manual_seed(6), 6)
    widths = torch.tensor([0.1, 0.3, 0.6, 1.0, 1.5, 2.0], dtype=torch.float64)
    sizes = [0.6, 0.3, 0.1, 0.0, 0.0, 0.0] if is_generated else [0.4, 0.3, 0.15, 0.1, 0.04, 0.01]
    chosen = torch.multinomial(torch.tensor(sizes), num, True, generator=generator)
    return centres[chosen] + widths[chosen, None] * normal(generator, num)


def one_direction(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """A first feature of eight times the others' deviation, shifted by 0.3 of it."""
    points = normal(generator, num)
    points[:, 0] = 8 * (points[:, 0] + 0.3 * is_generated)
    return points


def skewed(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """Lognormal features of deviation 1 in their logarithm; generated ones of 0.9."""
    return (normal(generator, num) * (1 - 0.1 * is_generated)).exp()


def apart(generator: torch.Generator, num: int, is_generated: bool) -> Tensor:
    """Four Gaussian features; sets that hardly meet, 2.6 deviations apart."""
    points = normal(generator, num, 4)
    points[:, 0] += 2.6 * is_generated
    return points


LAWS: dict[str, Draw] = {
    "gaussian": gaussian,
    "rectified": rectified,
    "clustered": clustered,
    "one direction": one_direction,
    "skewed": skewed,
    "apart": apart,
}


class Row(NamedTuple):
    """Shares of repeats whose interval holds the truth, and whose interval is doubtful."""

    figure: str
    law: str
    num: int
    held: float
    doubtful: float


class Tally:
    """Counts of intervals by figure."""

    def __init__(self) -> None:
        self.held: dict[str, list[bool]] = {}
        self.doubtful: dict[str, list[bool]] = {}

    def add(self, name: str, found: Estimate, truth: float) -> None:
        """Count an interval."""
        self.held.setdefault(name, []).append(found.low <= truth <= found.high)
        self.doubtful.setdefault(name, []).append(found.df < FEWEST_DF)

    def rows(self, law: str, num: int) -> list[Row]:
        """Return a row of each figure."""
        rows = []
        for name, each in self.held.items():
            doubtful = sum(self.doubtful[name]) / len(each)
            rows.append(Row(name, law, num, sum(each) / len(each), doubtful))
        return rows


def image_coverage(law: str, num: int, repeats: int, fresh: int) -> list[Row]:
    """Count the intervals of KID and figures of neighbours of a law."""
    draw = LAWS[law]
    generator = torch.Generator().manual_seed(1)
    truths = {"kid": kid_truth(law), **neighbour_truths(law, num, fresh)}
    tally = Tally()
    for _ in range(repeats):
        real = draw(generator, num, False)
        generated = draw(generator, num, True)
        found = {"kid": mmd(real, generated), **neighbour_figures(real, generated)}
        for name, each in found.items():
            tally.add(name, each, truths[name])
    return tally.rows(law, num)


def frechet_coverage(law: str, num: int, repeats: int, fresh: int) -> list[Row]:
    """Count the intervals of Frechet distances to a large reference."""
    draw = LAWS[law]
    generator = torch.Generator().manual_seed(1)
    reference = moments(draw(generator, NUM_REFERENCE, False))
    distances = [
        frechet_of_moments(*reference, *moments(draw(generator, num, True))) for _ in range(fresh)
    ]
    truth = sum(distances) / fresh
    tally = Tally()
    for _ in range(repeats):
        tally.add("fid", frechet(reference, draw(generator, num, True)), truth)
    return tally.rows(law, num)


@cache
def kid_truth(law: str) -> float:
    """Return the mean KID of large sets of a law."""
    draw = LAWS[law]
    generator = torch.Generator().manual_seed(2)
    kids = []
    for _ in range(NUM_LARGE):
        kids.append(mmd(draw(generator, LARGE, False), draw(generator, LARGE, True)).value)
    return sum(kids) / NUM_LARGE


def neighbour_truths(law: str, num: int, fresh: int) -> dict[str, float]:
    """Return the means of figures of neighbours over fresh sets of `num` points."""
    draw = LAWS[law]
    generator = torch.Generator().manual_seed(3)
    values = []
    for _ in range(0, fresh, SEPARATE):
        real = torch.stack([draw(generator, num, False) for _ in range(SEPARATE)])
        generated = torch.stack([draw(generator, num, True) for _ in range(SEPARATE)])
        values.append(_neighbours(*_distances(real, generated)))
    return dict(zip(NEIGHBOURS, torch.cat(values).mean(0).tolist(), strict=True))


def kernel_differences(law: str, num: int, repeats: int) -> list[Row]:
    """Count how often `quality/kernel` of two generated sets of one law, against the same real
    points, differs by less than two and three of its standard errors, the larger of both."""
    draw = LAWS[law]
    generator = torch.Generator().manual_seed(6)
    tally = Tally()
    for _ in range(repeats):
        real = draw(generator, num, False)
        one, two = (kernel_distance(real, draw(generator, num, True)) for _ in range(2))
        error = max(one.standard_error, two.standard_error)
        for errors in (2, 3):
            half = errors * error
            difference = Estimate(0.0, -half, half)
            tally.add(
                f"kernel, difference within {errors} errors", difference, one.value - two.value
            )
    return tally.rows(law, num)


def perplexity(deviation: float) -> Callable[[np.random.Generator, int], Estimate]:
    """Texts of lognormal lengths and nats a token, whose logarithms have this deviation and half of
    it, and a correlation of -0.3."""

    def repeat(generator: np.random.Generator, num: int) -> Estimate:
        length, other = generator.standard_normal((2, num))
        tokens = np.ceil(100 * np.exp(deviation * length))
        dearness = -0.3 * length + math.sqrt(1 - 0.09) * other
        return ratio_estimate(3 * tokens * np.exp(deviation / 2 * dearness), tokens).exp()

    return repeat


def entropy(generator: np.random.Generator, num: int) -> Estimate:
    """Entropies of which most lie near 5.5 nats, a few far below. Truth: 5.2."""
    return mean_estimate(5.6 - generator.gamma(2, 0.2, num))


def bound(deviation: float) -> Callable[[np.random.Generator, int], Estimate]:
    """Lognormal bounds of rows."""

    def repeat(generator: np.random.Generator, num: int) -> Estimate:
        return mean_estimate(np.exp(deviation * generator.standard_normal(num)))

    return repeat


def agreement_coverage(num: int) -> list[Row]:
    """Return the exact coverage of a share's interval, by the binomial law of its count."""
    rows = []
    for share in (0.5, 0.9, 0.98):
        held = 0.0
        for count in range(num + 1):
            found = share_estimate(count, num)
            if found.low <= share <= found.high:
                held += float(binom.pmf(count, num, share))
        rows.append(Row("agreement", f"share {share:g}", num, held, 0.0))
    return rows


def correlated(is_heavy: bool) -> Callable[[np.random.Generator, int], tuple[Estimate, Estimate]]:
    """Windows of 20 pairs of correlation 0.6 with a level of their own: Pearson's r, and R^2 of x
    as the guess of y; heavy ones have Student's t of 5 degrees in place of Gaussian values."""

    def repeat(generator: np.random.Generator, num: int) -> tuple[Estimate, Estimate]:
        scale = np.ones((num, 1))
        if is_heavy:
            scale = np.sqrt(5 / generator.chisquare(5, (num, 1)))
        level = generator.standard_normal((2, num, 1))
        x, noise = scale * (0.5 * level + generator.standard_normal((2, num, 20)))
        y = 0.6 * x + 0.8 * noise
        parts = (np.ones_like(x), x, y, x**2, y**2, x * y)
        sums = np.stack([each.sum(1) for each in parts], 1)
        variation = ((y - y.mean()) ** 2).sum(1)
        ratio = ratio_estimate(((y - x) ** 2).sum(1), variation)
        r2 = Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, ratio.df)
        return correlation_estimate(sums), r2

    return repeat


def text_coverage(num: int, repeats: int) -> list[Row]:
    """Count the intervals of all figures of texts, shares and regions."""
    many = np.random.default_rng(3)
    figures: dict[str, tuple[str, Callable[[np.random.Generator, int], Estimate], float]] = {}
    for deviation in (0.5, 1.0, 1.5):
        law = f"lognormal, {deviation:g}"
        repeat = perplexity(deviation)
        # E[tokens x nats] / E[tokens], but for the rounding of lengths
        tilt = -0.3 * deviation**2 / 2 + deviation**2 / 8
        figures[f"perplexity, {law}"] = ("perplexity", repeat, math.exp(3 * math.exp(tilt)))
        figures[f"bound, {law}"] = ("bound", bound(deviation), math.exp(deviation**2 / 2))
    figures["entropy, skewed"] = ("entropy", entropy, 5.2)
    rows = agreement_coverage(num)
    for label, (_, repeat, truth) in figures.items():
        name, _, law = label.partition(", ")
        tally = Tally()
        generator = np.random.default_rng(4)
        for _ in range(repeats):
            tally.add(name, repeat(generator, num), truth)
        rows += tally.rows(law, num)
    for is_heavy, law in ((False, "Gaussian windows"), (True, "windows of Student's t of 5")):
        tally = Tally()
        both = correlated(is_heavy)
        truths = [each.value for each in both(many, 200_000)]
        generator = np.random.default_rng(5)
        for _ in range(WINDOW_REPEATS * repeats):
            estimates = both(generator, num)
            for name, each, truth in zip(("pearson", "r2"), estimates, truths, strict=True):
                tally.add(name, each, truth)
        rows += tally.rows(law, num)
    return rows


def tasks(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Return part, law and number of each task, the longest first."""
    found = []
    for num in sorted(options.samples, reverse=True):
        if num >= FEWEST:
            images = [part for part in ("images", "kernel", "frechet") if part in options.only]
            for part in images:
                found += [(part, law, num) for law in options.laws]
        if "text" in options.only:
            found.append(("text", "", num))
    return found


def measure(part: str, law: str, num: int, repeats: int, fresh: int) -> list[Row]:
    """Return the rows of a task."""
    torch.set_num_threads(1)
    if part == "text":
        return text_coverage(num, repeats)
    if part == "kernel":
        return kernel_differences(law, num, repeats)
    if part == "frechet":
        return frechet_coverage(law, num, repeats, fresh)
    return image_coverage(law, num, repeats, fresh)


def print_table(rows: Sequence[Row], numbers: Sequence[int]) -> None:
    """Print a line of each figure and law, with a column of each number."""
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        cell = f"{100 * row.held:.1f}"
        if round(100 * row.doubtful):
            cell += f" ({100 * row.doubtful:.0f})"
        cells.setdefault((row.figure, row.law), {})[row.num] = cell
    print("| figure | law |", " | ".join(map(str, numbers)), "|")
    print("|---" * (2 + len(numbers)) + "|")
    for (figure, law), each in cells.items():
        columns = [each.get(num, "") for num in numbers]
        print(f"| {figure} | {law} |", " | ".join(columns), "|")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--fresh", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--laws", nargs="+", choices=tuple(LAWS), default=list(LAWS))
    parser.add_argument("--samples", type=int, nargs="+", default=[30, 100, 200, 500])
    options = parser.parse_args()
    parts = tasks(options)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(measure, *each, options.repeats, options.fresh) for each in parts]
        found = [future.result() for future in futures]
    by_part: dict[str, list[Row]] = {name: [] for name in PARTS}
    for (part, _, _), each in zip(parts, found, strict=True):
        by_part[part] += each
    rows = [row for each in by_part.values() for row in sorted(each, key=lambda row: row.figure)]
    print_table(rows, sorted(options.samples))
    for name, of_part in by_part.items():
        if of_part and name != "kernel":
            shares = [row.held / 0.95 for row in of_part]
            report(f"coverage of {name}, by law and number", shares)


if __name__ == "__main__":
    main()
