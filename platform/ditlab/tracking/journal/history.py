"""Metrics of a run from its journal, every point of them, for tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ditlab.home import RunFolder
from ditlab.tracking.journal.content import JournalContent
from ditlab.tracking.journal.side_index import read_content


@dataclass(frozen=True, eq=False)
class Series:
    """One metric over the steps."""

    steps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64."""
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float64."""
    times: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Milliseconds since 1970, int64."""


def metric_history(folder: RunFolder) -> dict[str, Series]:
    """Every metric of a run by name, in the order it was logged; {} where there is no journal."""
    try:
        return series_of(read_content(folder.journal))
    except OSError:
        return {}


def series_of(content: JournalContent, prefixes: tuple[str, ...] = ("",)) -> dict[str, Series]:
    """Every metric of a journal by name, or those of some prefixes."""
    steps, times = np.array(content.steps), np.array(content.times)
    history = {}
    for name, points in content.metrics.items():
        if not name.startswith(prefixes):
            continue
        rows = np.array(points.rows)
        history[name] = Series(steps[rows], np.array(points.values), times[rows])
    return history


PACE = ("time/", "perf/")
"""Beginnings of the names of metrics of a run's speed."""


def final_metrics(folder: RunFolder) -> dict[str, float]:
    """Return what a run counts with: the value of every metric as `final_values` has it."""
    return final_values(metric_history(folder))


def final_values(history: Mapping[str, Series]) -> dict[str, float]:
    """Return the latest value of every metric, and the median of those of speed: each point is a second's."""
    return {
        name: float(np.median(series.values) if name.startswith(PACE) else series.values[-1])
        for name, series in history.items()
    }
