"""End of a sweep: its report, its records, and its result, also as notebooks show it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ditlab.errors import RunFailed
from ditlab.home import RunFolder
from ditlab.notebook_html import card, never_failing, paragraph, status, table
from ditlab.reports.sweep_records import ENDED, SweepSummary, best, rank
from ditlab.reports.sweep_report import write_sweep_report
from ditlab.storage.files import stamped, write_durably
from ditlab.sweeps.folder import find_record
from ditlab.sweeps.parent import ParentRun
from ditlab.sweeps.results import best_spec, summarize_sweep
from ditlab.sweeps.start import StartedSweep
from ditlab.tracking.records import update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker

MOST_TRIALS = 50


@dataclass(frozen=True)
class SweepResult:
    """Result of one session of a sweep."""

    sweep_id: str
    status: str
    """finished | interrupted | stopped (its time budget was used up)."""
    summary: SweepSummary
    report: Path

    @property
    def exit_code(self) -> int:
        """Exit code of `ditlab tune`."""
        return 130 if self.status == "interrupted" else 0

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        found, metrics = best(self.summary), self.summary.metrics
        return {
            "run_id": self.sweep_id,
            "status": self.status,
            "trials": [
                {"number": trial.number, "run_id": trial.run_id, "status": trial.status, "step": trial.step,
                 "values": dict(trial.values), "metrics": {name: trial.metrics.get(name) for name in metrics},
                 "note": trial.note}
                for trial in rank(self.summary)
            ],
            "best": found and {"number": found.number, "run_id": found.run_id, "values": dict(found.values),
                               "metrics": {name: found.metrics[name] for name in metrics}},
            "report": str(self.report),
        }  # fmt: skip

    @never_failing
    def _repr_html_(self) -> str:
        return result_card(self.summary, self.status, self.report)


def count_ended(started: StartedSweep) -> int:
    """Count the trials that are not run again: finished, stopped or failed."""
    records = (find_record(started.home, trial) for trial in started.folder.planned_trials())
    return sum(record is not None and record.status in ENDED for record in records)


def finish_sweep(
    started: StartedSweep, status: str, seconds: float, parent: ParentRun, warn: Callable[[str], None]
) -> SweepResult:
    """Write the report, and end the records and the tracked runs.

    Raises RunFailed where all trials have ended and none has a value of the metric.
    """
    folder, home = started.folder, started.home
    for trial in folder.planned_trials():
        record = find_record(home, trial)
        if record and record.status == "running":  # the process that led it is gone
            update_record(home.run(trial.run_id), status="interrupted")
        if record and record.status in ("running", "interrupted"):
            _end_tracked_run(started, home.run(trial.run_id))
    update_record(folder.folder, status=status, step=count_ended(started))
    summary = summarize_sweep(started, seconds)
    files = []
    try:
        files = _write_report(started, summary)
    except OSError as error:  # the result is known without it
        warn(f"{folder.report} cannot be written ({error.strerror}).")
    if status == "finished" and best(summary) is None:
        parent.end("failed", summary, files)
        message = _no_value_message(summary, folder.report)
        update_record(folder.folder, status="failed", message=message)
        raise RunFailed(message, kind="crash")
    parent.end(status, summary, files)
    return SweepResult(summary.sweep_id, status, summary, folder.report / "report.html")


def _write_report(started: StartedSweep, summary: SweepSummary) -> list[Path]:
    spec, folder = best_spec(started.sweep, summary), started.folder.report
    files = write_sweep_report(summary, folder, spec, f"ditlab tune --resume {summary.sweep_id}")
    return [*files, write_durably(folder / "best.yaml", stamped(spec).encode())] if spec else files


def _end_tracked_run(started: StartedSweep, folder: RunFolder) -> None:
    """End the tracked run of a trial that was killed or paused: MLflow would show it as running for ever."""
    if folder.journal.exists():
        with RunTracker(folder, started.prepared.base.tracking.uri, started.home) as tracker:
            end_run(tracker, "interrupted")


def _no_value_message(summary: SweepSummary, report: Path) -> str:
    notes = sorted({trial.note.partition("\n")[0] for trial in summary.trials if trial.note})
    first = f" ({notes[0][:300]})" if notes else ""
    metric = summary.metrics[0]
    return f"sweep {summary.sweep_id}: no trial gave a value of {metric}{first}; see {shlex.quote(str(report))}."


def result_card(summary: SweepSummary, state: str, report: Path) -> Markup:
    """The ranked trials with their values and metrics, the best first."""
    ranked = rank(summary)
    axes = [axis.path for axis in summary.axes]
    rows = [
        [trial.number, trial.run_id, status(trial.status), f"{trial.step:,} of {trial.total_steps:,}",
         *(trial.metrics.get(name) for name in summary.metrics), *(trial.values.get(path) for path in axes)]
        for trial in ranked[:MOST_TRIALS]
    ]  # fmt: skip
    columns = ["trial", "run", "status", "step", *summary.metrics, *axes]
    left = f", of which {len(rows)} are shown" if len(ranked) > len(rows) else ""
    about = f"sweep {summary.sweep_id}, {state}, {len(ranked):,} trials{left}, the best first"
    return card(summary.name, about, [table(columns, rows), paragraph(f"Report: {report.name} in {report.parent}")])
