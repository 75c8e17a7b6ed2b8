"""Where the time of a run went, from its `time/...` and `perf/...` metrics. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ditlab.reports.formatting import format_duration
from ditlab.spec.values import format_bytes

History = Mapping[str, Any]
"""Series (`steps`, `values`) by metric."""
TIMED = ("time/", "perf/")
"""Prefixes of the metrics that it is made from."""
_STEPS = "time/steps"
_SLOWEST = "time/slowest"
FIGURES_TIME = "time/figures"
"""Seconds in which figures were drawn at the run's end, not those of a step."""
_BETWEEN_STEPS = ("checkpoint", "evaluation")
_PACES = {"perf/samples_per_second": "samples", "perf/tokens_per_second": "tokens"}


@dataclass(frozen=True)
class TimeSummary:
    """Time of a run's logged steps and of the figures at its end, over all its attempts; several
    workers count with their mean."""

    num_steps: int
    seconds: dict[str, float]
    """Seconds by phase, in the order of a step, without phases that took no time; `figures`
    last.
    """
    rates: dict[str, float]
    """Means over the time of the steps of `perf/mfu`, `perf/hfu` and samples and tokens a second a
    worker.
    """
    memory: float | None
    """Largest peak memory of a worker, bytes."""
    slowest: float | None
    """Times the others' median that the slowest worker's forward and backward passes took; None for
    one worker.
    """
    straggler: str
    """The worker that was named last for being slow; empty for none."""

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def training(self) -> float:
        """Seconds of all phases but the figures at the end."""
        return self.total - self.seconds.get("figures", 0.0)

    def rows(self) -> list[tuple[str, float, str, float]]:
        """Each phase in the order of a step: its name, seconds, share of all phases' time,
        milliseconds a step.
        """
        return [
            (name, seconds, f"{seconds / self.total:.1%}", 1000 * seconds / self.num_steps)
            for name, seconds in self.seconds.items()
        ]

    def sentences(self) -> list[str]:
        """Describe utilisation, speed, memory and slow workers, a line each."""
        lines = []
        if "perf/mfu" in self.rates:
            mfu = self.rates["perf/mfu"]
            hfu = self.rates.get("perf/hfu", 0.0)
            again = f" ({hfu:.0%} with recomputation)" if hfu > mfu else ""
            lines.append(f"the network used {mfu:.0%} of the rate of a large matrix product{again}")
        a_worker = ""
        if self.slowest is not None:
            lines.append(f"slowest worker: {self.slowest:.2f} times the others' median")
            a_worker = " a worker"
        for name, what in _PACES.items():
            speed = self.rates.get(name)
            if speed is not None:
                pace = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
                lines.append(f"mean over these steps {pace} {what}/s{a_worker}")
        if self.memory:
            lines.append(f"peak memory {format_bytes(int(self.memory))}")
        return list(filter(None, [" · ".join(lines), self.straggler]))

    def heading(self) -> str:
        """Describe what the table holds."""
        steps = "1 step" if self.num_steps == 1 else f"{self.num_steps:,} steps"
        return f"where the time of {steps} went: {format_duration(self.total)}"

    def to_dict(self) -> dict[str, Any]:
        """The fields in JSON's types, for `--json`."""
        return {
            "steps": self.num_steps,
            "seconds": self.seconds,
            "memory": self.memory,
            "slowest": self.slowest,
            "straggler": self.straggler,
            **{name.removeprefix("perf/"): value for name, value in self.rates.items()},
        }


def time_summary(history: History, straggler: str = "") -> TimeSummary | None:
    """Sum up a run's times; None where its metrics hold no step."""
    if _STEPS not in history:
        return None
    counts = _finite(history[_STEPS])
    spent = {name: values * counts for name, values in _phases(history).items()}
    seconds = {phase: float(values.sum()) for phase, values in spent.items() if values.sum() > 0}
    num = round(float(counts.sum()))
    if num <= 0 or not seconds:
        return None
    drawing = _finite_values(history, FIGURES_TIME).sum()
    if drawing > 0:
        seconds["figures"] = float(drawing)
    within = [values for phase, values in spent.items() if phase not in _BETWEEN_STEPS]
    of_steps = np.sum(within, axis=0)
    rates = {}
    for name in ("perf/mfu", "perf/hfu", *_PACES):
        mean = _mean(history, name, of_steps)
        if mean is not None:
            rates[name] = mean
    memory = _finite_values(history, "perf/memory")
    peak = float(memory.max()) if len(memory) else None
    return TimeSummary(num, seconds, rates, peak, _mean(history, _SLOWEST, counts), straggler)


def _phases(history: History) -> dict[str, np.ndarray]:
    """Seconds of each phase of a step at the points of the times, by name."""
    others = (_STEPS, _SLOWEST, FIGURES_TIME)
    names = [name for name in history if name.startswith("time/") and name not in others]
    return {name.removeprefix("time/"): _aligned(history, name) for name in names}


def _finite_values(history: History, name: str) -> np.ndarray:
    """`_finite` values of a metric; none where the run has not logged it."""
    if name not in history:
        return np.zeros(0)
    return _finite(history[name])


def _finite(series: Any) -> np.ndarray:
    """Values with 0 in the place of those that a file cannot have been written with: negative, NaN,
    infinite.
    """
    values = series.values
    return np.where(np.isfinite(values) & (values >= 0), values, 0.0)


def _aligned(history: History, name: str) -> np.ndarray:
    """Values of a metric at the points of the times; 0 where it has none, as a damaged line may
    have held it.
    """
    steps = history[_STEPS].steps
    values = np.zeros(len(steps))
    _, here, there = np.intersect1d(steps, history[name].steps, return_indices=True)
    values[here] = _finite(history[name])[there]
    return values


def _mean(history: History, name: str, weights: np.ndarray) -> float | None:
    """Mean of a metric over the points that have it, by their weights."""
    if name not in history:
        return None
    weight = float((weights * np.isin(history[_STEPS].steps, history[name].steps)).sum())
    if weight > 0:
        return float((_aligned(history, name) * weights).sum() / weight)
    return None
