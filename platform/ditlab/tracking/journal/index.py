"""What a journal holds already, so that nothing is written twice and each metric's budget goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ditlab.tracking.journal.format import Record, read_records
from ditlab.tracking.journal.thinning import Thinning


class Points(NamedTuple):
    """The metrics of one step that are new, by where they go."""

    values: dict[str, float]
    """To the journal and to MLflow."""
    held: dict[str, float]
    """To the journal only, for the budget's sake."""


class JournalIndex:
    """Last steps, pictures and parameters of one journal, and how far each metric's budget is used. Not thread-safe.

    Metrics go forward: a value for a step that is not beyond the metric's last one is a repeat and is dropped, even if
    it differs. A resumed run on other hardware differs in the last bits, and MLflow, which never forgets a point,
    would show both.
    """

    def __init__(self, budget: int | None) -> None:
        self.started: Record | None = None
        """The first `start` record, if there was one."""
        self.params: dict[str, str] = {}
        """Every parameter logged so far; the first value stays."""
        self.last_steps: dict[str, int] = {}
        """By metric."""
        self.images: set[tuple[str, int]] = set()
        """(key, step)."""
        self._budget = budget
        self._thinnings: dict[str, Thinning] = {}

    def read(self, path: Path) -> None:
        """Take in what an earlier process left."""
        for record in read_records(path):
            match record["kind"]:
                case "metrics":
                    self._take_in(record["step"], {**record["values"], **record.get("held", {})})
                case "image":
                    self.images.add((record["key"], record["step"]))
                case "params":
                    self.params = {**record["values"], **self.params}
                case "start":
                    self.started = self.started or record

    def points(self, step: int, values: Mapping[str, float]) -> Points:
        """Which of a step's metrics are new, and which of those MLflow gets."""
        points = Points({}, {})
        for key, raw in values.items():
            if self.last_steps.get(key, -1) < step:
                value = float(raw)
                (points.values if self._thinning(key).sends(value) else points.held)[key] = value
        return points

    def logged(self, step: int, points: Points) -> None:
        """These points are in the journal."""
        for key in (*points.values, *points.held):
            self.last_steps[key] = step

    def _take_in(self, step: int, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self.last_steps[key] = max(step, self.last_steps.get(key, -1))
            self._thinning(key).sends(float(value))

    def _thinning(self, key: str) -> Thinning:
        if (thinning := self._thinnings.get(key)) is None:
            thinning = self._thinnings[key] = Thinning(self._budget)
        return thinning
