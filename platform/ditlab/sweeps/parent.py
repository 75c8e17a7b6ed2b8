"""Tracked run of a sweep itself, below which its trials are nested."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ditlab.reports.sweep_records import ENDED, SweepSummary, Trial, best
from ditlab.sweeps.results import ranking_table
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trials import PlannedTrial, trial_experiment
from ditlab.tracking.environment import source_tags
from ditlab.tracking.names import flatten
from ditlab.tracking.notes import SweepNote
from ditlab.tracking.review import STATUS_TAG, log_best
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker

REPORT_FOLDER = "report"
"""Folder of the report's files among the run's artifacts."""


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
        tags = {**source_tags(), "ditlab.kind": "sweep", STATUS_TAG: "running"}
        tracker.start(sweep.name, base.tracking.experiment, base.model.family, parameters, tags)
        tracker.log_artifact(self._started.folder.spec)
        self._log_note("running")
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
        if (first := values.get(f"best/{self._metrics[0]}")) is not None:
            log_best(self._tracker, len(ended), first)

    def end(self, status: str, summary: SweepSummary, files: Sequence[Path]) -> None:
        """Log the ranking, the best trial and the report's files, and end the run."""
        tracker = self._tracker
        if summary.trials:
            tracker.log_table(ranking_table(summary), "ranking.json")
        if found := best(summary):
            values: dict[str, Any] = {f"ditlab.best.{path}": json.dumps(value) for path, value in found.values.items()}
            tracker.set_tags({"ditlab.best_trial": str(found.number), "ditlab.best_run": found.run_id, **values})
        for file in files:
            tracker.log_artifact(file, REPORT_FOLDER)
        tracker.set_tags({STATUS_TAG: status})
        self._log_note(status, summary, files)
        tracked: Literal["finished", "failed", "interrupted"] = (
            "interrupted" if status == "interrupted" else "failed" if status == "failed" else "finished"
        )
        tracker.end(tracked)
        self._has_ended = True

    def _log_note(self, status: str, summary: SweepSummary | None = None, files: Sequence[Path] = ()) -> None:
        """Renew what MLflow shows with the run: ranking, best spec, figures, how to go on."""
        sweep, found = self._started.sweep, best(summary) if summary else None
        spec: dict[str, Any] = {}
        if found:
            spec = trial_experiment(sweep, PlannedTrial(found.number, found.run_id, dict(found.values))).to_dict()
        names = [f"{REPORT_FOLDER}/{file.name}" for file in files]
        note = SweepNote(
            self._started.folder.folder.run_id, sweep.name, status, sweep.metrics, sweep.modes,
            summary.total_trials if summary else sweep.trials or 0,
            ranking_table(summary) if summary and summary.trials else {},
            f"trial {found.number} (run {found.run_id})" if found else "",
            flatten(spec),
            [name for name in names if name.endswith(".png")],
            next((name for name in names if name.endswith(".html")), ""),
        )  # fmt: skip
        self._tracker.log_note(note.text())
