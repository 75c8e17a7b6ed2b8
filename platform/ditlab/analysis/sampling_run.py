"""A sweep over samples as a run of its own: its folder, its resume, its run in MLflow, its report and its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text

from ditlab.analysis.opened_run import logged_records
from ditlab.analysis.sampling_sweep import PointDraw, SamplingLedger, SamplingSession
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.notebook_html import card, never_failing, paragraph, table
from ditlab.reports.formatting import format_cell, terminal_table
from ditlab.reports.sampling_report import (
    PointResult,
    SamplingSummary,
    ranking_table,
    rows_of,
    verdict,
    write_sampling_report,
)
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.locks import lock_run
from ditlab.spec.files import encode_recorded, load_recorded, read_with_parents
from ditlab.spec.overrides import changed_values
from ditlab.spec.sampling_sweep import SamplingSweep, load_sampling_sweep
from ditlab.spec.sweep import is_sampling_sweep
from ditlab.spec.values import format_value
from ditlab.storage.files import write_durably
from ditlab.tracking import notes
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import MAIN_TAG
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.names import flatten
from ditlab.tracking.records import create_run, find_run, list_runs, update_record
from ditlab.tracking.review import STATUS_TAG
from ditlab.tracking.tracker import RunTracker

SPEC = "sweep.yaml"
REPORT = "report"
"""Folder of the report, among the run's files and its artifacts."""
MOST_ROWS = 24
"""Points of a terminal's table."""
IN_THE_REPORT = ("ms a sample", "difference")
"""Columns for which a terminal has no room."""
DrawsByPoint = Mapping[tuple[int, int], PointDraw]


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
        shown = [place for place, name in enumerate(columns) if name not in IN_THE_REPORT]
        kinds = {
            columns[place]: "text" if columns[place] in ("frontier", "told apart") else "number" for place in shown
        }
        yield terminal_table(kinds, ([format_cell(row[place]) for place in shown] for row in rows[:MOST_ROWS]))
        if left := len(rows) - MOST_ROWS:
            yield Text(f"and {left} more in the report" if left > 0 else "")
        yield from map(Text, verdict(self.summary))

    def to_dict(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        front = {each.number for each in self.summary.frontier}
        points = [
            {
                "number": each.number, "values": dict(each.values), "metrics": each.means,
                "options": list(each.options), "frontier": each.number in front,
                "interval": (interval := each.interval(self.summary.metric)) and interval.to_dict(),
            }
            for each in self.summary.measured
        ]  # fmt: skip
        return {
            "run_id": self.sweep_id, "status": self.status, "of": self.summary.run_id, "points": points,
            "best": self.best and self.best.number,
            "not_told_apart": [each.number for each in self.summary.close_to_best()],
            "report": str(self.report),
        }  # fmt: skip

    @never_failing
    def _repr_html_(self) -> str:
        columns, rows = rows_of(self.summary)
        about = f"samples of run {self.summary.run_id} ({self.summary.run_name}), {self.status}"
        return card(self.summary.name, about, [paragraph(" ".join(verdict(self.summary))), table(columns, rows)])


def stored_sampling_sweep(home: Home, name: str) -> tuple[RunFolder, SamplingSweep] | None:
    """The folder and spec of an earlier sweep over samples, by its id or name; None for any other run or sweep. Raises
    UserError for an unknown one."""
    found = find_run(home, name)
    spec = found.folder.path / SPEC
    if not found.record.trials or not is_sampling_sweep(read_with_parents(spec)):
        return None
    return found.folder, load_recorded(spec, load_sampling_sweep)


def find_unfinished(home: Home, sweep: SamplingSweep) -> RunFolder | None:
    """The newest unfinished sweep over samples with this content, for `--resume auto`."""
    for record in list_runs(home):
        if record.trials and record.name == sweep.name and record.status != "finished":
            stored = stored_sampling_sweep(home, record.run_id)
            if stored is not None and not _differences(stored[1], sweep):
                return stored[0]
    return None


def check_same(folder: RunFolder, stored: SamplingSweep, given: SamplingSweep) -> None:
    """Raise UserError where a resumed sweep would have other points or draws; it may have more seeds."""
    if changed := _differences(stored, given):
        raise UserError(
            f"sweep {folder.run_id} was started as another one: {'; '.join(changed)}. Resume it with its own file, or "
            "without one, or start a new sweep without --resume."
        )


def _differences(stored: SamplingSweep, given: SamplingSweep) -> list[str]:
    fewer = given.seeds < stored.seeds
    return [
        f"{path}={format_value(value)} (was {format_value(earlier)})"
        for path, earlier, value in changed_values(stored.to_dict(), given.to_dict())
        if path != "seeds" or fewer
    ]


def start_sweep(session: SamplingSession, folder: RunFolder | None) -> SamplingLedger:
    """Make the folder of a new sweep, or take that of a resumed one, and store the spec. Raises UserError."""
    saved, sweep = session.saved, session.sweep
    try:
        folder = folder or create_run(
            saved.home, sweep.name, family=saved.experiment.model.family, spec_hash="", total_steps=len(session.points),
            trials=len(session.points), tracking_uri=saved.record.tracking_uri,
        )  # fmt: skip
        write_durably(folder.path / SPEC, encode_recorded(sweep.to_dict()))
    except OSError as error:
        raise home_write_error(saved.home, error) from error
    return SamplingLedger(folder)


def run_sweep(session: SamplingSession, ledger: SamplingLedger, warn: Callable[[str], None]) -> SamplingResult:
    """Draw and measure what is left of a sweep, write its report and its run in MLflow; Ctrl-C ends it early.

    Raises UserError where the disk refuses, and where another process runs the sweep.
    """
    saved, folder = session.saved, ledger.folder
    tracking = saved.experiment.tracking
    with lock_run(folder):
        update_record(folder, status="running", message="")
        tracker = RunTracker(folder, tracking.uri, saved.home, warn=warn)
        with logged_records(tracker), _ended_if_failing(folder, tracker):
            _start(session, tracker)

            def finished(number: int, done: DrawsByPoint) -> None:
                found = session.summary(folder.run_id, done)
                num = sum(bool(each.by_seed) for each in found.points)
                update_record(folder, step=num)
                best = {f"best/{found.metric}": found.best.means[found.metric]} if found.best else {}
                tracker.journal.log_metrics(num, {"points/done": float(num), **best})

            status = "finished"
            try:
                done: DrawsByPoint = session.run(ledger, finished)
            except KeyboardInterrupt:
                status, done = "interrupted", ledger.read()
            except OSError as error:
                raise home_write_error(saved.home, error) from error
            summary = session.summary(folder.run_id, done)
            files = _write_report(session, ledger, summary, warn)
            _log_result(tracker, summary, status, files)
            update_record(folder, status=status)
    return SamplingResult(status, summary, folder.path / REPORT / "report.html", tracker.num_unsent)


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


def _start(session: SamplingSession, tracker: RunTracker) -> None:
    """Start the sweep's run in MLflow, below that of the trained run."""
    saved, sweep = session.saved, session.sweep
    stored = sweep.to_dict()
    parameters = flatten({key: value for key, value in stored.items() if key not in ("name", "space", "base")})
    parameters |= {f"space.{path}": ", ".join(map(str, axis.listed() or ())) for path, axis in sweep.space.items()}
    tags = {
        **source_tags(), "ditlab.kind": "sampling sweep", STATUS_TAG: "running", MAIN_TAG: sweep.metric,
        PARENT_TAG: saved.folder.run_id,
    }  # fmt: skip
    tracker.start(sweep.name, saved.experiment.tracking.experiment, saved.experiment.model.family, parameters, tags)
    tracker.log_artifact(tracker.folder.path / SPEC)


def _write_report(
    session: SamplingSession, ledger: SamplingLedger, summary: SamplingSummary, warn: Callable[[str], None]
) -> list[Path]:
    folder, best = ledger.folder.path / REPORT, summary.best
    sample = f"ditlab {shlex.join(['sample', summary.run_id, *best.options])}" if best else ""
    session.saved.progress("writing the report", 0, None, "")
    try:
        folder.mkdir(exist_ok=True)
        grid = session.grid(ledger, [each.number for each in summary.measured])
        return write_sampling_report(summary, folder, grid, sample, f"ditlab tune --resume {summary.sweep_id}")
    except OSError as error:  # the result is known without it
        warn(f"{folder} cannot be written ({error.strerror}).")
        return []


def _log_result(tracker: RunTracker, summary: SamplingSummary, status: str, files: Sequence[Path]) -> None:
    """Log the table, the report's files and, of a whole sweep, each point's means at the step of its number."""
    if summary.measured:
        tracker.log_table(ranking_table(summary), "ranking.json")
    for each in summary.points if status == "finished" else ():
        tracker.journal.log_metrics(each.number, each.means)
    if summary.best:
        options = " ".join(summary.best.options)
        tracker.set_tags({"ditlab.best_point": str(summary.best.number), "ditlab.best_options": options})
    for file in files:
        tracker.log_artifact(file, REPORT)
    tracker.set_tags({STATUS_TAG: status})
    columns, rows = rows_of(summary)
    shown = [[notes.plain(format_cell(cell), 60) for cell in row] for row in rows[:10]]
    parts = [
        f"**{notes.plain(summary.name)}**: samples of run {summary.run_id} ({notes.plain(summary.run_name)}), step "
        f"{summary.step:,}; {len(summary.points)} points. Run {summary.sweep_id}, {status}.",
        *(notes.plain(each, 400) for each in verdict(summary)),
        notes.table([notes.plain(name, 60) for name in columns], shown),
        *(notes.page("Report of this sweep", f"{REPORT}/{file.name}") for file in files if file.suffix == ".html"),
        *(notes.picture(file.stem, f"{REPORT}/{file.name}") for file in files if file.suffix == ".png"),
    ]
    tracker.log_note("\n\n".join(parts) + "\n")
    tracker.end("finished" if status == "finished" else "interrupted")
