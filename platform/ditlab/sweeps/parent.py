"""Tracked run of a sweep itself, below which its trials are nested."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ditlab.reports.sweeps.ranking import best
from ditlab.reports.sweeps.records import ENDED, SweepSummary, Trial
from ditlab.sweeps.results import ranking_table
from ditlab.sweeps.start import StartedSweep
from ditlab.tracking.environment import source_tags
from ditlab.tracking.parameters import flatten
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker


class ParentRun:
    """Tracked run of one sweep: its space, counts, best value, ranking and report.

    Use as a context manager, whose end waits a bounded time for MLflow.
    """

    def __init__(self, started: StartedSweep) -> None:
        self._started = started
        self._metrics = started.sweep.metrics
        uri = started.prepared.base.tracking.uri
        self._tracker = RunTracker(started.folder.folder, uri, started.home, budget=None)
        self._num_logged = -1
        self._has_ended = False

    def __enter__(self) -> "ParentRun":
        base, sweep, tracker = self._started.prepared.base, self._started.sweep, self._tracker
        stored = sweep.to_dict()
        parameters = flatten({key: stored[key] for key in ("search", "scheduler", "trials", "seed", "fixed")})
        parameters |= {f"space.{path}": json.dumps(axis) for path, axis in stored["space"].items()}
        parameters |= {"metric": ", ".join(sweep.metrics), "mode": ", ".join(sweep.modes)}
        tags = {**source_tags(), "ditlab.kind": "sweep"}
        tracker.start(sweep.name, base.tracking.experiment, base.model.family, parameters, tags)
        tracker.log_artifact(self._started.folder.spec)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._has_ended:
            self._tracker.end("interrupted" if kind is KeyboardInterrupt else "failed")
        self._tracker.close(0.0 if kind is KeyboardInterrupt else CATCH_UP_TIMEOUT)

    def log_progress(self, trials: Sequence[Trial], leader: int | None) -> None:
        """Log the counts by status and the best value so far, once for each number of ended trials."""
        ended = [trial for trial in trials if trial.status in ENDED]
        if len(ended) <= self._num_logged:
            return
        self._num_logged = len(ended)
        counts = {f"trials/{status}": float(sum(trial.status == status for trial in ended)) for status in ENDED}
        found = next((trial for trial in trials if trial.number == leader), None)
        values = {f"best/{name}": found.metrics[name] for name in self._metrics if found and name in found.metrics}
        self._tracker.journal.log_metrics(len(ended), {**counts, **values})

    def end(self, status: str, summary: SweepSummary, files: Sequence[Path]) -> None:
        """Log the ranking, the best trial and the report's files, and end the run."""
        tracker = self._tracker
        if summary.trials:
            tracker.log_table(ranking_table(summary), "ranking.json")
        if found := best(summary):
            values: dict[str, Any] = {f"ditlab.best.{path}": json.dumps(value) for path, value in found.values.items()}
            tracker.set_tags({"ditlab.best_trial": str(found.number), "ditlab.best_run": found.run_id, **values})
        for file in files:
            tracker.log_artifact(file, "report")
        tracked: Literal["finished", "failed", "interrupted"] = (
            "interrupted" if status == "interrupted" else "failed" if status == "failed" else "finished"
        )
        tracker.end(tracked)
        self._has_ended = True
