"""A sweep over samples as a run of its own: its record, its run in MLflow, its report and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text

from ditlab.analysis.opened_run import logged_records
from ditlab.home import RunFolder
from ditlab.notebook_html import card, never_failing, paragraph, table
from ditlab.reports.formatting import format_cell, terminal_table
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.locks import lock_run
from ditlab.spec.files import encode_recorded
from ditlab.storage.files import write_durably
from ditlab.tracking import notes
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import MAIN_TAG
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.names import flatten
from ditlab.tracking.records import create_run, update_record
from ditlab.tracking.review import STATUS_TAG
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.race.samples.ledger import SampledFolder
from ditlab_addons.race.samples.report import PointResult, SamplingSummary, rows_of, verdict, write_sampling_report
from ditlab_addons.race.samples.session import Done, SamplingSession

REPORT = "report"
"""Folder of the report among the run's artifacts."""
MOST_ROWS = 24
"""Points of a terminal's table."""
IN_THE_REPORT = ("ms a sample", "difference")
"""Columns that a narrow terminal leaves out."""


@dataclass(frozen=True)
class SamplingResult:
    """Result of one session of a sweep over samples."""

    status: str
    """finished | interrupted"""
    summary: SamplingSummary
    report: Path
    num_unsent: int
    """Records that wait for MLflow."""

    @property
    def sweep_id(self) -> str:
        """Id of the sweep's run."""
        return self.summary.sweep_id

    @property
    def best(self) -> PointResult | None:
        """The point with the best mean; None before any is measured."""
        return self.summary.best

    @property
    def exit_code(self) -> int:
        """Exit code of `ditlab tune`."""
        return 130 if self.status == "interrupted" else 0

    def terminal_tables(self) -> Iterator[RenderableType]:
        """The points, the frontier first, and what follows from them in sentences."""
        columns, rows = rows_of(self.summary)
        kinds = dict.fromkeys(columns, "number") | {"frontier": "text", "told apart": "text"}
        cells = ([format_cell(cell) for cell in row] for row in rows[:MOST_ROWS])
        more = f"and {len(rows) - MOST_ROWS} more in the report" if len(rows) > MOST_ROWS else None
        yield terminal_table(kinds, cells, caption=more, optional=IN_THE_REPORT)
        yield from map(Text, verdict(self.summary))

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        summary = self.summary
        return {
            "run_id": self.sweep_id,
            "status": self.status,
            "of": summary.run_id,
            "points": [self._point(each) for each in summary.measured],
            "best": self.best and self.best.number,
            "not_told_apart": [each.number for each in summary.close_to_best()],
            "report": str(self.report),
        }

    def _point(self, point: PointResult) -> dict[str, Any]:
        interval = point.interval(self.summary.metric)
        return {
            "number": point.number,
            "values": dict(point.values),
            "metrics": point.means,
            "options": list(point.options),
            "frontier": point in self.summary.frontier,
            "interval": interval and interval.to_dict(),
        }

    @never_failing
    def _repr_html_(self) -> str:
        columns, rows = rows_of(self.summary)
        about = f"samples of run {self.summary.run_id} ({self.summary.run_name}), {self.status}"
        return card(self.summary.name, about, [paragraph(" ".join(verdict(self.summary))), table(columns, rows)])


def run_sweep(session: SamplingSession, folder: SampledFolder | None, warn: Callable[[str], None]) -> SamplingResult:
    """Draw and measure what is left of a sweep, write its report and its run in MLflow; Ctrl-C ends it early.

    `folder` is that of a resumed one. Raises UserError where the disk refuses, and where another process runs the
    sweep.
    """
    try:
        return _run(session, folder or _new_folder(session), warn)
    except OSError as error:
        raise home_write_error(session.saved.home, error) from error


def _new_folder(session: SamplingSession) -> SampledFolder:
    saved = session.saved
    num = len(session.points)
    family = saved.experiment.model.family
    uri = saved.record.tracking_uri
    run = create_run(
        saved.home, session.sweep.name, family=family, spec_hash="", total_steps=num, trials=num, tracking_uri=uri
    )
    return SampledFolder(run)


def _run(session: SamplingSession, folder: SampledFolder, warn: Callable[[str], None]) -> SamplingResult:
    saved = session.saved

    def finished(done: Done) -> None:
        found = session.summary(folder.sweep_id, done)
        num = sum(bool(each.by_seed) for each in found.points)
        update_record(folder.folder, step=num)
        best = {f"best/{found.metric}": found.best.means[found.metric]} if found.best else {}
        tracker.journal.log_metrics(num, {"points/done": float(num), **best})

    with lock_run(folder.folder):
        tracker = RunTracker(folder.folder, saved.experiment.tracking.uri, saved.home, warn=warn)
        with logged_records(tracker), _ended_if_failing(folder.folder, tracker):
            write_durably(folder.spec, encode_recorded(session.sweep.to_dict()))
            update_record(folder.folder, status="running", message="")
            _start(session, tracker, folder.spec)
            status = "finished"
            try:
                done = session.run(folder, finished)
            except KeyboardInterrupt:
                status = "interrupted"
                done = folder.read()
            summary = session.summary(folder.sweep_id, done)
            _log_result(tracker, summary, status, _write_report(session, folder, summary, warn))
            update_record(folder.folder, status=status)
    return SamplingResult(status, summary, folder.report / "report.html", tracker.num_unsent)


@contextmanager
def _ended_if_failing(folder: RunFolder, tracker: RunTracker) -> Iterator[None]:
    """Record the end of a sweep that an error ends; it can be resumed."""
    try:
        yield
    except BaseException as error:
        status: Literal["interrupted", "failed"] = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        update_record(folder, status=status, message=str(error))
        tracker.end(status)
        raise


def _start(session: SamplingSession, tracker: RunTracker, spec: Path) -> None:
    """Start the sweep's run in MLflow, below that of the trained run."""
    saved = session.saved
    sweep = session.sweep
    stored = sweep.to_dict()
    parameters = flatten({key: value for key, value in stored.items() if key not in ("name", "space", "base")})
    for path, axis in sweep.space.items():
        parameters[f"space.{path}"] = ", ".join(map(str, axis.listed() or ()))
    tags = {
        **source_tags(),
        "ditlab.kind": "sampling sweep",
        STATUS_TAG: "running",
        MAIN_TAG: sweep.metric,
        PARENT_TAG: saved.folder.run_id,
    }
    tracker.start(sweep.name, saved.experiment.tracking.experiment, saved.experiment.model.family, parameters, tags)
    tracker.log_artifact(spec)


def _write_report(
    session: SamplingSession, folder: SampledFolder, summary: SamplingSummary, warn: Callable[[str], None]
) -> list[Path]:
    session.saved.progress("writing the report", 0, None, "")
    try:
        folder.report.mkdir(exist_ok=True)
        grid = session.grid(folder, [each.number for each in summary.measured])
        return write_sampling_report(summary, folder.report, grid)
    except OSError as error:  # the result is known without it
        warn(f"{folder.report} cannot be written ({error.strerror}).")
        return []


def _log_result(tracker: RunTracker, summary: SamplingSummary, status: str, files: Sequence[Path]) -> None:
    """Log the table, the report's files and, of a whole sweep, each point's means at the step of its number."""
    columns, rows = rows_of(summary)
    if rows:
        tracker.log_table({name: [row[place] for row in rows] for place, name in enumerate(columns)}, "ranking.json")
    for each in summary.points if status == "finished" else ():
        tracker.journal.log_metrics(each.number, each.means)
    if summary.best:
        options = " ".join(summary.best.options)
        tracker.set_tags({"ditlab.best_point": str(summary.best.number), "ditlab.best_options": options})
    for file in files:
        tracker.log_artifact(file, REPORT)
    tracker.set_tags({STATUS_TAG: status})
    tracker.log_note(_note(summary, status, files))
    tracker.end("finished" if status == "finished" else "interrupted")


def _note(summary: SamplingSummary, status: str, files: Sequence[Path]) -> str:
    """Text that MLflow shows with the run, as Markdown."""
    parts = [
        f"**{notes.plain(summary.name)}**: samples of run {summary.run_id} ({notes.plain(summary.run_name)}), step "
        f"{summary.step:,}; {len(summary.points)} points. Run {summary.sweep_id}, {status}.",
        *(notes.plain(each, 400) for each in verdict(summary)),
    ]
    for file in files:
        if file.suffix == ".html":
            parts.append(notes.page("Report of this sweep", f"{REPORT}/{file.name}"))
        elif file.suffix == ".png":
            parts.append(notes.picture(file.stem, f"{REPORT}/{file.name}"))
    return "\n\n".join(parts) + "\n"
