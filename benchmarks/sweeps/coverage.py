"""Coverage of intervals over seeds: how often they hold the true difference, in simulated groups of
seeds.

    python benchmarks/sweeps/coverage.py [--groups 20000] [--pairs FILE.json]

Fixed intervals of 3, 5 and 10 pairs, wanted to hold it in 94.5 to 95.5 % of groups with Gaussian
differences; for skewed laws, a heavy-tailed one (Student's t with 3 degrees of freedom) and
differences of trained pairs, drawn again from `--pairs` ({"configurations": {NAME: [value by
seed]}}, of two configurations), the coverage is printed. Then intervals at every stop of 3 to 12
pairs, wanted to hold it at all stops together in 94.5 %: the product's, and a confidence sequence
beside them (t mixture, Wang and Ramdas 2023, arXiv:2310.03722, with a Gaussian prior of variance g
on mean over deviation). Both decide whether the mean is zero; printed is how many pairs that takes.
Then other intervals: of means over many held-out samples, of two groups without pairs (Welch), of a
whole curve within its band, and of pairs of which one in ten nearly diverges, with the share in
which the far pair is named (`far_values`). Figures are coverage over 0.95.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import numpy as np

from benchmarks.rounds import report
from ditlab.intervals import far_values, seed_band, unpaired_interval
from ditlab_addons.race.race import analysis_confidence, analysis_sizes

CONFIDENCE = 0.95
FEWEST, MOST = 3, 12
SIZES = (3, 5, 10)
BLOCKS = 10
"""Parts of the groups, each of which gives a ratio."""
SKEWNESS = (0.5, 1.0, 2.0)
HELD_OUT = (100, 1000)
"""Held-out samples of an evaluation."""
UNPAIRED = (3, 5, 10)
POINTS = 20
"""Evaluations of a curve."""
DIVERGES = 0.1
"""Share of seeds that nearly diverge."""
JUMPS = (5.0, 10.0, 30.0)
"""Deviations by which the difference of a pair is moved where one seed nearly diverges."""
FAR_SIZES = (3, 5, 8, 12)
MOST_FAR = 0.1
"""Share of Gaussian groups in which a pair may be named."""
VARIANCES = (1.0, 3.0, 10.0, 30.0)
"""Prior variances g of the mixture."""

Draw = Callable[[tuple[int, int]], np.ndarray]
"""Draws of differences, (num_seeds, num_groups), whose true mean is 0."""


def laws(generator: np.random.Generator, pairs: Path | None) -> dict[str, Draw]:
    """Return laws of differences by name; that of `pairs` last, if there is a file."""
    found: dict[str, Draw] = {"gaussian": generator.standard_normal}
    for skewness in SKEWNESS:
        found[f"gamma of skewness {skewness:g}"] = gamma_law(generator, 4 / skewness**2)
    found["lognormal of skewness 6.2"] = lambda shape: (
        generator.lognormal(size=shape) - math.exp(0.5)
    )
    found["student t of 3"] = lambda shape: generator.standard_t(3, shape)
    if pairs is not None:
        first, second = json.loads(pairs.read_text())["configurations"].values()
        trained = np.subtract(first, second)
        found[f"{trained.size} trained pairs"] = lambda shape: (
            generator.choice(trained, shape) - trained.mean()
        )
    return found


def gamma_law(generator: np.random.Generator, shape: float) -> Draw:
    """Return draws from a gamma law of a shape, less its mean."""
    return lambda size: generator.gamma(shape, size=size) - shape


def is_held(draws: np.ndarray, confidence: float) -> np.ndarray:
    """Return True for groups whose fixed interval holds 0, the true mean."""
    band = seed_band(draws, confidence)
    return (band.low <= 0) & (band.high >= 0)


def is_held_at_looks(draws: np.ndarray) -> np.ndarray:
    """Return True where the product's interval of a look holds 0, (num_analyses, num_groups)."""
    sizes = analysis_sizes(FEWEST, MOST)
    levels = (
        analysis_confidence(look, len(sizes), CONFIDENCE) for look in range(1, len(sizes) + 1)
    )
    return np.stack([is_held(draws[:num], level) for num, level in zip(sizes, levels, strict=True)])


def is_held_by_mixture(draws: np.ndarray, variance: float) -> np.ndarray:
    """Return True where the confidence sequence holds 0, after each of FEWEST to MOST pairs,
    (num_stops, num_groups).

    The ratio of likelihoods (1 + n g)^(-1/2) ((1 + q) / (1 + q / (1 + n g)))^(n/2), with q = t^2 /
    (n - 1), is a martingale of the scale-invariant filtration, and stays below 1 / alpha with
    probability 1 - alpha (Ville).
    """
    held = []
    for num in range(FEWEST, MOST + 1):
        mean, std = draws[:num].mean(axis=0), draws[:num].std(axis=0)
        q, wide = (mean / std) ** 2, 1 + num * variance
        logarithm = num / 2 * (np.log1p(q) - np.log1p(q / wide)) - 0.5 * np.log(wide)
        held.append(logarithm < math.log(1 / (1 - CONFIDENCE)))
    return np.stack(held)


def pairs_to_exclude(is_held: np.ndarray, sizes: tuple[int, ...]) -> tuple[float, float]:
    """Return the share of groups in which 0 is excluded at some stop, and the pairs at that stop or
    the last one.
    """
    is_out = ~is_held
    stops = np.where(is_out.any(axis=0), is_out.argmax(axis=0), len(sizes) - 1)
    return float(is_out.any(axis=0).mean()), float(np.array(sizes)[stops].mean())


def report_coverage(name: str, held: np.ndarray, wanted: str = "") -> None:
    """Print a coverage with its standard error, and report it over the confidence; held:
    (num_groups,).
    """
    rate = float(held.mean())
    error = math.sqrt(rate * (1 - rate) / held.size)
    print(
        f"{name}: {rate:.2%} +- {error:.2%} of {held.size:,} "
        f"groups{wanted and f', wanted {wanted}'}"
    )
    report(
        f"{name}, over {CONFIDENCE:g}",
        [float(each.mean()) / CONFIDENCE for each in np.array_split(held, BLOCKS)],
    )


def report_held_out(generator: np.random.Generator, num_groups: int) -> None:
    """Print the coverage of Student's t over many samples of skewed values."""
    for law, draw in laws(generator, None).items():
        for num in HELD_OUT:
            report_coverage(f"{law}, {num} samples", is_held(draw((num, num_groups)), CONFIDENCE))


def report_unpaired(generator: np.random.Generator, num_groups: int) -> None:
    """Print the coverage of Welch's interval for equal and unequal spreads."""
    for num in UNPAIRED:
        for spread in (1.0, 3.0, 10.0):
            for law in ("gaussian", "gamma of skewness 2"):
                draw = laws(generator, None)[law]
                first = spread * draw((num, num_groups))
                second = draw((num, num_groups))
                found = [
                    unpaired_interval(one, other)
                    for one, other in zip(first.T.tolist(), second.T.tolist(), strict=True)
                ]
                held = np.array([each.low <= 0 <= each.high for each in found])
                name = f"{law}, {num} and {num} seeds without pairs, spreads 1 and {spread:g}"
                report_coverage(name, held)


def report_bands(generator: np.random.Generator, num_groups: int) -> None:
    """Print how often a whole curve lies within its band; neighbours have correlation 0.9."""
    for num in SIZES:
        draws = generator.standard_normal((POINTS, num, num_groups))
        for point in range(1, POINTS):
            draws[point] = 0.9 * draws[point - 1] + math.sqrt(1 - 0.9**2) * draws[point]
        held = np.stack([is_held(each, CONFIDENCE) for each in draws])
        report_coverage(f"a point of a curve, {num} seeds", held[-1])
        report_coverage(f"all {POINTS} points of a curve, {num} seeds", held.all(axis=0))


def report_far(generator: np.random.Generator, num_groups: int) -> None:
    """Print coverage where seeds nearly diverge, and in which share of groups far pairs are named:
    of all, of those with a diverged pair in them, and of those whose interval misses the mean.
    """
    for num in FAR_SIZES:
        named = is_far(generator.standard_normal((num, num_groups)))
        print(
            f"gaussian, {num} pairs: a far pair named in {named.mean():.1%}, wanted at most "
            f"{MOST_FAR:.0%}"
        )
    for jump in JUMPS:
        for num in FAR_SIZES:
            diverges = generator.random((num, num_groups)) < DIVERGES
            draws = generator.standard_normal((num, num_groups)) + jump * diverges
            held = is_held(draws - jump * DIVERGES, CONFIDENCE)
            named = is_far(draws)
            has_one = diverges.any(axis=0)
            name = f"one seed in ten moved by {jump:g} deviations, {num} pairs"
            report_coverage(name, held)
            print(
                f"  a far pair named in {named[has_one].mean():.1%} of the {has_one.mean():.0%} "
                f"with one, {named[~has_one].mean():.1%} of the others; intervals that miss: "
                f"{(~has_one)[~held].mean():.0%} have none, named in {named[~held].mean():.0%}"
            )


def is_far(draws: np.ndarray) -> np.ndarray:
    """Return True for groups with values that are far from the others; draws (num, num_groups)."""
    return np.array([bool(far_values(each)) for each in draws.T.tolist()])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument(
        "--pairs", type=Path, help="values of two trained configurations by seed, as JSON"
    )
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    sizes = analysis_sizes(FEWEST, MOST)
    for law, draw in laws(generator, options.pairs).items():
        for num in SIZES:
            wanted = "94.5 to 95.5 %" if law == "gaussian" else ""
            report_coverage(
                f"{law}, {num} pairs", is_held(draw((num, options.groups)), CONFIDENCE), wanted
            )
        at_looks = is_held_at_looks(draw((MOST, options.groups)))
        wanted = "94.5 % or more" if law == "gaussian" else ""
        report_coverage(f"{law}, every stop of {FEWEST} to {MOST}", at_looks.all(axis=0), wanted)
    draws = generator.standard_normal((MOST, options.groups))
    for variance in VARIANCES:
        held = is_held_by_mixture(draws, variance).all(axis=0)
        report_coverage(f"gaussian, every stop, mixture of variance {variance:g}", held)
    for shift in (1.0, 2.0, 4.0):
        found, num = pairs_to_exclude(is_held_at_looks(draws + shift), sizes)
        print(
            f"a mean of {shift:g} deviations is found in {found:.1%} with {num:.1f} pairs by "
            "the product"
        )
        for variance in VARIANCES:
            found, num = pairs_to_exclude(
                is_held_by_mixture(draws + shift, variance), tuple(range(FEWEST, MOST + 1))
            )
            print(f"  in {found:.1%} with {num:.1f} by the mixture of variance {variance:g}")
    bands = {num: seed_band(draws[:num]) for num in SIZES}
    widths = (f"{num} pairs {np.mean(band.high - band.low) / 2:.2f}" for num, band in bands.items())
    print(f"mean half width of fixed intervals, in deviations: {', '.join(widths)}")
    report_held_out(generator, options.groups // 10)
    report_unpaired(generator, options.groups // 4)
    report_bands(generator, options.groups)
    report_far(generator, options.groups)
    print(f"figures are coverage over {CONFIDENCE:g}: a ratio of 1 is what was promised")


if __name__ == "__main__":
    main()
