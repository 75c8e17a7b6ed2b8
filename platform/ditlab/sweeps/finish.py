"""The end of a sweep: what its trials gave, written down for people and for MLflow."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.errors import RunFailed
from ditlab.home import RunFolder
from ditlab.reports.sweeps.ranking import best, rank
from ditlab.reports.sweeps.records import ENDED, SweepSummary
from ditlab.reports.sweeps.report import write_sweep_report
from ditlab.storage.files import write_durably
from ditlab.sweeps.folder import record_of
from ditlab.sweeps.parent import ParentRun
from ditlab.sweeps.prepare import ReadySweep
from ditlab.sweeps.results import best_spec, collect
from ditlab.tracking.records import update_record
from ditlab.tracking.tracker import RunTracker


@dataclass(frozen=True)
class SweepResult:
    """How `ditlab tune` ended."""

    sweep_id: str
    status: str
    """finished | interrupted | stopped (its time was up)."""
    summary: SweepSummary
    report: Path

    @property
    def exit_code(self) -> int:
        return 130 if self.status == "interrupted" else 0

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
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


def num_ended(ready: ReadySweep) -> int:
    """Trials that are done, for better or worse."""
    assert ready.folder
    records = (record_of(ready.home, trial.run_id) for trial in ready.folder.trials())
    return sum(record is not None and record.status in ENDED for record in records)


def end_sweep(ready: ReadySweep, status: str, seconds: float, parent: ParentRun) -> SweepResult:
    """Writes the report and closes the books. Raises RunFailed where all trials ended and none gave a value."""
    assert ready.folder
    folder, home = ready.folder, ready.home
    for trial in folder.trials():
        record = record_of(home, trial.run_id)
        if record and record.status == "running":  # the process that led it is gone
            update_record(home.run(trial.run_id), status="interrupted")
        if record and record.status in ("running", "interrupted"):
            _close(ready, home.run(trial.run_id))
    update_record(folder.folder, status=status, step=num_ended(ready))
    summary = collect(ready, seconds)
    files = []
    try:
        files = _write_report(ready, summary)
    except OSError as error:  # what came out is known all the same
        sys.stderr.write(f"warning: {folder.report} cannot be written ({error.strerror}).\n")
    if status == "finished" and best(summary) is None:
        parent.end("failed", summary, files)
        message = _none_has_a_value(summary, folder.report)
        update_record(folder.folder, status="failed", message=message)
        raise RunFailed(message, kind="crash")
    parent.end(status, summary, files)
    return SweepResult(summary.sweep_id, status, summary, folder.report / "report.html")


def _write_report(ready: ReadySweep, summary: SweepSummary) -> list[Path]:
    assert ready.folder
    spec, folder = best_spec(ready.sweep, summary), ready.folder.report
    files = write_sweep_report(summary, folder, spec, f"ditlab tune --resume {summary.sweep_id}")
    return [*files, write_durably(folder / "best.yaml", spec.encode())] if spec else files


def _close(ready: ReadySweep, folder: RunFolder) -> None:
    """A trial that was killed, or waited for others, could not say that it is over: MLflow would show it running."""
    if folder.journal.exists():
        with RunTracker(folder, ready.experiment.tracking.uri, ready.home) as tracker:
            tracker.end("interrupted")


def _none_has_a_value(summary: SweepSummary, report: Path) -> str:
    notes = sorted({trial.note.partition("\n")[0] for trial in summary.trials if trial.note})
    first = f" ({notes[0][:300]})" if notes else ""
    metric = summary.metrics[0]
    return f"sweep {summary.sweep_id}: no trial gave a value of {metric}{first}; see {shlex.quote(str(report))}."
