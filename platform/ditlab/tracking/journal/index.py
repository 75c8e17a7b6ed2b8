"""Index of a journal's content: prevents double records, and carries each metric's thinning on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ditlab.tracking.journal.content import JournalContent
from ditlab.tracking.journal.facts import JournalFacts
from ditlab.tracking.journal.results import ResultPoint, RunResults
from ditlab.tracking.journal.thinning import Thinning


class NewPoints(NamedTuple):
    """The metrics of one step that no record holds yet, by destination."""

    values: dict[str, float]
    """For the journal and MLflow."""
    held: dict[str, float]
    """For the journal only, as thinning leaves them out."""


class JournalIndex:
    """Last steps, images and parameters of one journal, and the thinning of each metric. Not thread-safe.

    Metrics go forward: a value for a step that is not beyond the metric's last one is a repeat and is dropped, even if
    it differs. A resumed run on other hardware differs in the last bits, and MLflow, which never forgets a point,
    would show both.
    """

    def __init__(self, budget: int | None) -> None:
        self.facts = JournalFacts()
        self.results = RunResults()
        self.last_steps: dict[str, int] = {}
        """Last step of each metric."""
        self.images: set[tuple[str, int]] = set()
        """(key, step)."""
        self._budget = budget
        self._thinnings: dict[str, Thinning] = {}

    def load(self, content: JournalContent) -> None:
        """Index the records of earlier processes."""
        steps = np.array(content.steps)
        for name, points in content.metrics.items():
            self.last_steps[name] = max(int(steps[points.rows].max()), self.last_steps.get(name, -1))
            self._thinning(name).advance(np.array(points.values))
        for record in content.events:
            self.facts.add(record)
            if record["kind"] == "image":
                self.images.add((record["key"], record["step"]))
        self.results.load(content)

    def select(self, step: int, values: Mapping[str, float]) -> NewPoints:
        """The metrics of a step that are new, split by thinning."""
        points = NewPoints({}, {})
        for key, raw in values.items():
            if self.last_steps.get(key, -1) < step:
                value = float(raw)
                (points.values if self._thinning(key).selects(value) else points.held)[key] = value
        return points

    def mark_logged(self, step: int, points: NewPoints, time: int) -> None:
        """Add points that have been written to the journal, with their record's time."""
        for key, value in (*points.values.items(), *points.held.items()):
            self.last_steps[key] = step
            self.results.add(key, ResultPoint(step, value, time))

    def _thinning(self, key: str) -> Thinning:
        if (thinning := self._thinnings.get(key)) is None:
            thinning = self._thinnings[key] = Thinning(self._budget)
        return thinning
