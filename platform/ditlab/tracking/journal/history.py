"""What the journal tells about a run's metrics, every point of them, for tables and figures. Imports no mlflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from ditlab.home import RunFolder
from ditlab.tracking.journal.format import Record, parse, read_records

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
            for key, value in _points(record):
                series = history.setdefault(key, Series())
                series.steps.append(record["step"])
                series.values.append(float(value))
                series.times.append(record["time"])
    return history


def final_metrics(folder: RunFolder) -> dict[str, float]:
    """The latest value of every metric."""
    return {name: series.values[-1] for name, series in metric_history(folder).items()}


def last_metrics(folder: RunFolder) -> dict[str, float]:
    """The latest value of each metric among the last 64 KiB of the journal: cheap, for lists of runs."""
    latest: dict[str, float] = {}
    for record in _tail(folder):
        if record["kind"] == "metrics":
            latest.update({key: float(value) for key, value in _points(record)})
    return latest


def _points(record: Record) -> Iterator[tuple[str, float | str]]:
    """All of a record's metrics, those that MLflow does not get included."""
    yield from record["values"].items()
    yield from record.get("held", {}).items()


def _tail(folder: RunFolder) -> list[Record]:
    try:
        with folder.journal.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    # The first line is cut unless the whole file was read; a cut one does not parse.
    return [record for line in lines if line and (record := parse(line)) is not None]
