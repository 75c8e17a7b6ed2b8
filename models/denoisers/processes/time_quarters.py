"""Held-out metrics by quarter of time: every sample is seen once in each, so that a figure is a mean over the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from denoisers.contract import NoiseSource

NUM_QUARTERS = 4


def quarter_names(component: str) -> tuple[str, ...]:
    """Metric names of a component by quarter: `velocity_t0` to `velocity_t3`."""
    return tuple(f"{component}_t{quarter}" for quarter in range(NUM_QUARTERS))


def draw_times(noise_source: NoiseSource, quarter: int, num: int) -> Tensor:
    """Draw times (num,), uniform in a quarter of [0, 1), under the name `time_t0` to `time_t3`."""
    return (quarter + noise_source.uniform(f"time_t{quarter}", (num,))) / NUM_QUARTERS


def mean_over_quarters(measure: Callable[[int], dict[str, Tensor]], component: str) -> dict[str, Tensor]:
    """Measure every quarter; return the mean of each metric over quarters, and one component by quarter.

    `measure` takes a quarter, 0 to 3, and returns scalar metrics by name.
    """
    quarters = [measure(quarter) for quarter in range(NUM_QUARTERS)]
    means = {name: torch.stack([metrics[name] for metrics in quarters]).mean() for name in quarters[0]}
    by_quarter = zip(quarter_names(component), quarters, strict=True)
    return means | {name: metrics[component] for name, metrics in by_quarter}
