"""The figure of a benchmark whose sides took turns: the median of the rounds' ratios, and how sure it is."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = "DITLAB_BENCHMARK_RESULTS"
"""Environment variable that names a file, to which each figure is added as a line of JSON."""


@dataclass(frozen=True)
class Measured:
    """What else was measured of the side that a figure is about; None where it was not."""

    seconds: float | None = None
    """Median of a step, pass or draw."""
    samples_per_second: float | None = None
    utilisation: float | None = None
    """Operations a second over those of a matrix product of the same round."""
    peak_memory: int | None = None
    """Bytes."""
    device: str = "cpu"


@dataclass(frozen=True)
class BenchmarkFigure:
    """A ratio, as `make bench` writes it."""

    name: str
    ratio: float
    low: float
    high: float
    """`low` and `high` hold the median with 95%; they are the range of fewer than 6 rounds."""
    rounds: int
    threads: int | None
    """Threads that torch computed with; None without torch."""
    measured: Measured


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the median lies with `confidence`, whatever the distribution.

    Each value is below the median as a coin falls (David and Nagaraja 2003, Order Statistics, section 7.1); the whole
    range where there are too few for that confidence. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no rounds were measured; --rounds must be at least 1")
    ordered, num = sorted(values), len(values)
    tail, left = 0.0, 0
    for below in range(num // 2):
        tail += math.comb(num, below) / 2**num
        if 2 * tail > 1 - confidence:
            break
        left = below
    return ordered[left], ordered[num - 1 - left]


def describe_ratios(ratios: Sequence[float]) -> str:
    """Describe rounds: `ratio 1.013 (median of 20 rounds; 95% interval 1.004 to 1.021)`; fewer than 6 have a range."""
    middle = statistics.median(ratios)
    if len(ratios) == 1:
        return f"ratio {middle:.3f} (one round)"
    low, high = median_interval(ratios)
    kind = "95% interval" if len(ratios) >= 6 else "range"  # all of 5 values hold the median with 94%
    return f"ratio {middle:.3f} (median of {len(ratios)} rounds; {kind} {low:.3f} to {high:.3f})"


def report(name: str, ratios: Sequence[float], measured: Measured | None = None, note: str = "") -> None:
    """Print a figure and its note, and add it to the file that `RESULTS` names, if there is one.

    Raises ValueError for no ratios.
    """
    low, high = median_interval(ratios)
    print(f"{name}: {describe_ratios(ratios)}{note and f'; {note}'}", flush=True)
    if file := os.environ.get(RESULTS):
        torch = sys.modules.get("torch")
        threads = None if torch is None else torch.get_num_threads()
        middle = statistics.median(ratios)
        figure = BenchmarkFigure(name, middle, low, high, len(ratios), threads, measured or Measured())
        with Path(file).open("a") as lines:
            lines.write(json.dumps(asdict(figure)) + "\n")
