"""How often 95 % intervals of perplexity, entropy, bound and correlations hold the truth, over
repeats whose truth is known.

Samples are drawn from laws like those of text: nats and numbers of tokens that differ from sequence
to sequence and depend on each other, skewed bounds of held-out rows, Gaussian pairs. A ratio is the
coverage over 95 %.

    python benchmarks/quality/text_coverage.py [--repeats 2000] [--samples 100 500 2000]
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab_models.intervals import correlation_ends, mean_estimate, ratio_estimate

Repeat = Callable[[np.random.Generator, int], tuple[float, float]]
"""One repeat: the ends of the interval of a figure of so many samples."""


def perplexity(generator: np.random.Generator, num: int) -> tuple[float, float]:
    """Sequences of 100 to 1,000 scored tokens; a long one has dearer tokens, by 0.5 nats in all.
    Truth: SHARE.
    """
    share = generator.random(num)
    tokens = np.rint(100 + 900 * share)
    nats = tokens * (3 + 0.5 * share) * generator.gamma(16, 1 / 16, num)
    estimate = ratio_estimate(nats, tokens).exp()
    return estimate.low, estimate.high


def entropy(generator: np.random.Generator, num: int) -> tuple[float, float]:
    """Sequences' entropies, skewed to the left: most near 5.5 nats, a few that repeat themselves.
    Truth: 5.2.
    """
    estimate = mean_estimate(5.6 - generator.gamma(2, 0.2, num))
    return estimate.low, estimate.high


def bound(generator: np.random.Generator, num: int) -> tuple[float, float]:
    """Bounds of rows, skewed to the right as the integral over noise is. Truth: 3.5 nats a
    token.
    """
    estimate = mean_estimate(3 + generator.gamma(1.5, 1 / 3, num))
    return estimate.low, estimate.high


def pearson(generator: np.random.Generator, num: int) -> tuple[float, float]:
    """Gaussian pairs of correlation 0.6."""
    x, noise = generator.standard_normal((2, num))
    return correlation_ends(float(np.corrcoef(x, 0.6 * x + 0.8 * noise)[0, 1]), num)


SHARE = (100 * 3.25 + 900 * (3 / 2 + 0.5 / 3)) / 550
"""Nats a token over all tokens: E[tokens x (3 + u / 2)] / E[tokens] of u uniform."""
FIGURES: dict[str, tuple[Repeat, float]] = {
    "perplexity": (perplexity, math.exp(SHARE)),
    "entropy": (entropy, 5.2),
    "bound": (bound, 3.5),
    "pearson": (pearson, 0.6),
}


def coverage(name: str, num: int, repeats: int, seed: int = 0) -> float:
    """Share of repeats of `num` samples whose interval holds the truth."""
    repeat, truth = FIGURES[name]
    generator = np.random.default_rng(seed)
    ends = (repeat(generator, num) for _ in range(repeats))
    return sum(low <= truth <= high for low, high in ends) / repeats


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 500, 2000])
    options = parser.parse_args()
    for name in FIGURES:
        shares = [coverage(name, num, options.repeats) for num in options.samples]
        told = ", ".join(
            f"{share:.1%} of {num:,}" for share, num in zip(shares, options.samples, strict=True)
        )
        report(f"coverage of {name}", [share / 0.95 for share in shares], note=told)


if __name__ == "__main__":
    main()
