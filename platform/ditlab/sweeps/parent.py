"""A sweep's own tracked run: its space, how far it is, the ranking, the best trial, the figures; trials hang below."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ditlab.reports.sweeps.ranking import ENDED, Summary, Trial, best
from ditlab.sweeps.prepare import ReadySweep
from ditlab.sweeps.results import ranking_table
from ditlab.tracking.environment import source_tags
from ditlab.tracking.parameters import flatten
from ditlab.tracking.tracker import CATCH_UP, RunTracker


class ParentRun:
    """Use as a context manager: its end waits a bounded time for tracking."""

    def __init__(self, ready: ReadySweep) -> None:
        assert ready.folder
        self._ready = ready
        self._metrics = ready.sweep.metrics
        tracking = ready.experiment.tracking
        self._tracker = RunTracker(ready.folder.folder, tracking.uri, ready.home, budget=None)
        self._shown = -1
        self._has_ended = False

    def __enter__(self) -> "ParentRun":
        ready, sweep, tracker = self._ready, self._ready.sweep, self._tracker
        assert ready.folder
        stored = sweep.to_dict()
        parameters = flatten({key: stored[key] for key in ("search", "scheduler", "trials", "seed", "fixed")})
        parameters |= {f"space.{path}": json.dumps(axis) for path, axis in stored["space"].items()}
        parameters |= {"metric": ", ".join(sweep.metrics), "mode": ", ".join(sweep.modes)}
        tags = {**source_tags(), "ditlab.kind": "sweep"}
        tracking = ready.experiment.tracking
        tracker.start(sweep.name, tracking.experiment, ready.experiment.model.family, parameters, tags)
        tracker.log_artifact(ready.folder.spec)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._has_ended:
            self._tracker.end("interrupted" if kind is KeyboardInterrupt else "failed")
        self._tracker.close(0.0 if kind is KeyboardInterrupt else CATCH_UP)

    def show(self, rows: Sequence[Trial], leader: int | None) -> None:
        """A point for every trial that has ended: how many of each kind, and the best value so far."""
        ended = [row for row in rows if row.status in ENDED]
        if len(ended) <= self._shown:
            return
        self._shown = len(ended)
        counts = {f"trials/{kind}": float(sum(row.status == kind for row in ended))
                  for kind in ENDED}  # fmt: skip
        found = next((row for row in rows if row.number == leader), None)
        values = {f"best/{name}": found.metrics[name] for name in self._metrics if found and name in found.metrics}
        self._tracker.log_metrics(len(ended), {**counts, **values})

    def end(self, status: str, summary: Summary, files: Sequence[Path]) -> None:
        """The ranking, the best trial and the report."""
        tracker = self._tracker
        if summary.trials:
            tracker.log_table(ranking_table(summary), "ranking.json")
        if found := best(summary):
            values: dict[str, Any] = {f"ditlab.best.{path}": json.dumps(value) for path, value in found.values.items()}
            tracker.set_tags({"ditlab.best_trial": str(found.number), "ditlab.best_run": found.run_id, **values})
        for file in files:
            tracker.log_artifact(file, "report")
        told: Literal["finished", "failed", "interrupted"] = (
            "interrupted" if status == "interrupted" else "failed" if status == "failed" else "finished"
        )
        tracker.end(told)
        self._has_ended = True
