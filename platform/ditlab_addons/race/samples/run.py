"""A sweep over samples as a run of its own: its record, its run in MLflow, its report and its
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ditlab.home import RunFolder
from ditlab.reports.sweep_records import SweepSummary, best
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.locks import lock_run
from ditlab.spec.files import encode_recorded
from ditlab.storage.files import write_durably
from ditlab.sweeps.results import ParentRun, SweepResult
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.records import create_run, update_record
from ditlab_addons.race.samples.ledger import SampledFolder
from ditlab_addons.race.samples.report import write_sampling_report
from ditlab_addons.race.samples.session import Done, SamplingSession


@dataclass(frozen=True)
class SamplingResult(SweepResult):
    """Result of one session of a sweep over samples."""

    run_id: str = ""
    """The run whose samples were drawn."""
    options: Sequence[str] = field(default=())
    """Options of `ditlab sample` that draw as the best configuration does; empty before any is
    measured.
    """

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {**super().to_dict(), "of": self.run_id, "options": list(self.options)}


def run_sweep(
    session: SamplingSession, folder: SampledFolder | None, warn: Callable[[str], None]
) -> SamplingResult:
    """Draw and measure what is left of a sweep, write its report and its run in MLflow; Ctrl-C ends
    it early.

    `folder` is that of a resumed one. Raises UserError where the disk refuses, and where another
    process runs the sweep.
    """
    try:
        return _run(session, folder or _new_folder(session), warn)
    except OSError as error:
        raise home_write_error(session.saved.home, error) from error


def _new_folder(session: SamplingSession) -> SampledFolder:
    saved = session.saved
    num = len(session.configurations) * session.sweep.seeds
    family = saved.experiment.model.family
    uri = saved.record.tracking_uri
    run = create_run(
        saved.home,
        session.sweep.name,
        family=family,
        spec_hash="",
        total_steps=num,
        trials=num,
        tracking_uri=uri,
    )
    return SampledFolder(run)


def _run(
    session: SamplingSession, folder: SampledFolder, warn: Callable[[str], None]
) -> SamplingResult:
    saved = session.saved
    tags = {"ditlab.kind": "sampling sweep", PARENT_TAG: saved.folder.run_id}
    parent = ParentRun(folder, saved.home, session.sweep, saved.experiment, tags)

    def drawn(done: Done) -> None:
        summary = session.summary(folder.sweep_id, done)
        update_record(folder.folder, step=len(done))
        parent.log_progress(summary.runs, best(summary))

    with lock_run(folder.folder), _ended_if_failing(folder.folder):
        write_durably(folder.spec, encode_recorded(session.sweep.to_dict()))
        update_record(folder.folder, status="running", message="")
        with parent:
            status = "finished"
            try:
                done = session.run(folder, drawn)
            except KeyboardInterrupt:
                status = "interrupted"
                done = folder.draws()
            summary = session.summary(folder.sweep_id, done)
            first = best(summary)
            files = _write_report(session, folder, summary, warn)
            parent.end(status, summary, files, dict(first.values) if first else None)
            update_record(folder.folder, status=status)
    options = session.configurations[first.number].arguments() if first else ()
    report = folder.report / "report.html"
    return SamplingResult(
        folder.sweep_id, status, summary, report, run_id=saved.folder.run_id, options=options
    )


@contextmanager
def _ended_if_failing(folder: RunFolder) -> Iterator[None]:
    """Record the end of a sweep that an error ends; it can be resumed."""
    try:
        yield
    except BaseException as error:
        status: Literal["interrupted", "failed"] = (
            "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        )
        update_record(folder, status=status, message=str(error))
        raise


def _write_report(
    session: SamplingSession,
    folder: SampledFolder,
    summary: SweepSummary,
    warn: Callable[[str], None],
) -> list[Path]:
    session.saved.progress("writing the report", 0, None, "")
    options = {
        configuration.number: configuration.arguments() for configuration in session.configurations
    }
    try:
        folder.report.mkdir(exist_ok=True)
        grid = session.grid(folder, summary)
        return write_sampling_report(
            summary, folder.report, grid, session.saved.folder.run_id, options
        )
    except OSError as error:  # the result is known without it
        warn(f"{folder.report} cannot be written ({error.strerror}).")
        return []
