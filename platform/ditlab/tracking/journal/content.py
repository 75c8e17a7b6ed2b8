"""Content of a journal in memory: metrics as columns, the other records as they are."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from ditlab.tracking.journal.format import JournalRecord, all_metrics
from ditlab.tracking.journal.reader import JournalLine


class MetricPoints(NamedTuple):
    """Points of one metric, in the order they were logged."""

    rows: array[int]
    """Positions in `JournalContent.steps` and `times`."""
    values: array[float]


@dataclass
class JournalContent:
    """Records of a journal up to an offset."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    """Step of each `metrics` record."""
    times: array[int] = field(default_factory=lambda: array("q"))
    """Time of each `metrics` record, milliseconds since 1970."""
    metrics: dict[str, MetricPoints] = field(default_factory=dict)
    """Points by metric."""
    events: list[JournalRecord] = field(default_factory=list)
    """Every other record, in order."""
    num_damaged: int = 0
    """Whole lines that were passed over."""
    end: int = 0
    """Bytes of the journal that were read."""

    def add(self, line: JournalLine) -> None:
        """Add the next line of the journal."""
        self.end = line.end
        record = line.record
        if record is None:
            self.num_damaged += line.is_whole  # a last line without a newline may be in writing
        elif record["kind"] == "metrics":
            row = len(self.steps)
            self.steps.append(record["step"])
            self.times.append(record["time"])
            for name, value in all_metrics(record):
                points = self.metrics.get(name)
                if points is None:
                    points = self.metrics[name] = MetricPoints(array("q"), array("d"))
                points.rows.append(row)
                points.values.append(value)
        else:
            self.events.append(record)
