"""Results of a run so far: for each metric of its evaluations the first value, the newest, the lowest, the highest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ditlab.tracking.journal.content import JournalContent

RESULT_PREFIXES = ("eval/", "quality/", "held_out/", "assessed/")
"""Metrics of evaluations, in training and after it."""
SPEED = "train/samples_per_second"

_FOLLOWED = (*RESULT_PREFIXES, SPEED)


class ResultPoint(NamedTuple):
    """A point of a metric."""

    step: int
    value: float
    time: int
    """Milliseconds since 1970, as in the journal."""


@dataclass
class MetricSpan:
    """Extremes of one metric; NaN is neither the lowest nor the highest."""

    first: ResultPoint
    last: ResultPoint
    low: ResultPoint
    high: ResultPoint

    def add(self, point: ResultPoint) -> None:
        """Add the next point."""
        self.last = point
        if point.value < self.low.value or math.isnan(self.low.value):
            self.low = point
        if point.value > self.high.value or math.isnan(self.high.value):
            self.high = point


class RunResults(dict[str, MetricSpan]):
    """Spans of a run's results by metric, in the order in which the metrics appeared."""

    def add(self, name: str, point: ResultPoint) -> None:
        """Add a point; metrics that are no results are left out."""
        if not name.startswith(_FOLLOWED):
            return
        if span := self.get(name):
            span.add(point)
        else:
            self[name] = MetricSpan(point, point, point, point)

    def load(self, content: JournalContent) -> None:
        """Add the points of a journal."""
        for name, points in content.metrics.items():
            if name.startswith(_FOLLOWED):
                # The speed has a point for each step, and nobody asks for its extremes.
                begin = len(points.rows) - 1 if name == SPEED else 0
                for row, value in zip(points.rows[begin:], points.values[begin:], strict=True):
                    self.add(name, ResultPoint(content.steps[row], value, content.times[row]))
