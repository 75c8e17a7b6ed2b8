"""Metrics of a run from its journal, every point of them, for tables and figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from ditlab.home import RunFolder
from ditlab.tracking.journal.format import all_metrics
from ditlab.tracking.journal.reader import read_records, read_tail

_TAIL_BYTES = 65536


@dataclass
class Series:
    """One metric over the steps."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """Milliseconds since 1970."""


def metric_history(folder: RunFolder) -> dict[str, Series]:
    """Every metric of a run by name, in the order it was logged; {} where there is no journal."""
    history: dict[str, Series] = {}
    if not folder.journal.exists():
        return history
    for record in read_records(folder.journal):
        if record["kind"] == "metrics":
            for key, value in all_metrics(record):
                series = history.setdefault(key, Series())
                series.steps.append(record["step"])
                series.values.append(value)
                series.times.append(record["time"])
    return history


def final_metrics(folder: RunFolder) -> dict[str, float]:
    """The latest value of every metric."""
    return {name: series.values[-1] for name, series in metric_history(folder).items()}


def recent_metrics(folder: RunFolder) -> dict[str, float]:
    """The latest value of each metric among the last 64 KiB of the journal: cheap, for lists of runs."""
    latest: dict[str, float] = {}
    for record in read_tail(folder.journal, _TAIL_BYTES):
        if record["kind"] == "metrics":
            latest.update(all_metrics(record))
    return latest
