"""Journal of a run against its receipts, and losses in MLflow against the journal.

MLflow's store is compared where it is a database on this machine.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.checkpoint_files import KeptCheckpoints
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.errors import UserError, first_line
from ditlab.receipts.reading import Receipts
from ditlab.receipts.records import LEFT_OUT
from ditlab.storage.plain_files import open_regular_file
from ditlab.tracking.access import is_server, resolve_tracking_uri, sqlite_path
from ditlab.tracking.journal import LARGEST_JOURNAL, JournalRecord, all_metrics, read_journal

JOURNAL_PART = "journal"
COMPARED = {"train/loss": "loss", "train/grad_norm": "norm", "train/lr": "lr"}
"""Column of the receipts by metric."""
NAMED = 3
"""Faults that are named one by one."""
TRACKING_PART = "mlflow"
LOSS = "train/loss"
MOST_POINTS = 20_000
"""Points that are compared: the first ones, about 10,000 of a run of 10^6 steps under the default `tracking.budget`."""
SECONDS = 10.0
"""Time after which a query is ended."""
QUERY = """
    SELECT m.step, m.value FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid
    WHERE m.key = ? AND m.is_nan = 0 AND t.key = 'ditlab.run' AND t.value = ? ORDER BY m.step LIMIT ?
"""


@dataclass
class JournalLines:
    """Content of a run's journal, as far as verification compares it."""

    num: int = 0
    """Number of lines."""
    damaged: list[str] = field(default_factory=list)
    """Place of each line that is altered, torn, or has lost its checksum."""
    points: list[tuple[float, ...]] = field(default_factory=list)
    """Step, then the metrics of `COMPARED`, NaN for one that is not there."""
    has_end: bool = False
    """True if the end of the run is recorded."""
    tags: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Tags as they were set, each with the number of its line."""


def read_lines(run: OpenedRun, is_checked: bool, may_be_torn: bool) -> JournalLines:
    """Read a run's journal, bounded in memory by its logged steps. Raises OSError where that fails.

    Args:
        run: the run.
        is_checked: every line must have a checksum; else those after the first that has one.
        may_be_torn: the last line may be in writing, or was when a process was killed.
    """
    found = JournalLines()
    with open_regular_file(run.folder.journal, LARGEST_JOURNAL) as file:
        for number, line in enumerate(read_journal(file), 1):
            found.num = number
            if number % 20_000 == 0:
                run.progress("reading the journal", number, None, "lines")
            is_lacking = is_checked and not line.is_checked
            is_checked = is_checked or (line.is_checked and line.record is not None)
            if (line.record is None and line.is_whole) or is_lacking or (not line.is_whole and not may_be_torn):
                found.damaged.append(f"line {number:,}, byte {line.begin:,}")
            elif line.record is not None:
                _take(found, number, line.record)
    return found


def _take(found: JournalLines, number: int, record: JournalRecord) -> None:
    if record["kind"] == "metrics":
        values = dict(all_metrics(record))
        if "train/loss" in values:
            found.points.append((record["step"], *(values.get(name, np.nan) for name in COMPARED)))
    elif record["kind"] == "tags":
        found.tags.append((number, record["values"]))
    found.has_end = found.has_end or record["kind"] == "end"


def check_journal(
    run: OpenedRun, receipts: Receipts | None, kept: KeptCheckpoints
) -> tuple[JournalLines | None, list[VerifiedPart]]:
    """Check every line's checksum, each step's loss, gradient norm and learning rate, and that none is missing.

    Returns the lines, None where they cannot be read, and the findings.
    """
    may_be_torn = run.record.status == "running"  # or it was killed
    began_with_receipts = receipts is not None and any(
        attempt.step == 0 or run.record.start for attempt in receipts.attempts.values()
    )
    try:
        lines = read_lines(run, began_with_receipts, may_be_torn)
    except FileNotFoundError:
        return None, [VerifiedPart(JOURNAL_PART, "off", f"{run.folder.journal} is gone; bring it back from a copy.")]
    except OSError as error:
        return None, [VerifiedPart(JOURNAL_PART, "off", f"{run.folder.journal} cannot be read ({first_line(error)}).")]
    return lines, list(_findings(run, lines, receipts, kept))


def _findings(
    run: OpenedRun, lines: JournalLines, receipts: Receipts | None, kept: KeptCheckpoints
) -> Iterator[VerifiedPart]:
    faults = []
    if damaged := lines.damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        faults.append(f"altered or torn at {'; '.join(damaged[:NAMED])}{more}; bring it back from a copy.")
    elif run.record.status == "finished" and not lines.has_end:
        faults.append("the run has finished, and its end is not there: lines are missing; bring it back from a copy.")
    points = np.array(lines.points, np.float64).reshape(-1, 1 + len(COMPARED))
    compared = rest = 0
    if receipts is not None:
        off, compared, rest = _differing(points, receipts)
        faults += [
            f"step {step:,}: {metric} is {value:.9g} in the journal, and {recorded} in the receipts: one was altered."
            for step, metric, value, recorded in off[:NAMED]
        ]
        if len(off) > NAMED:
            faults.append(f"{len(off) - NAMED:,} more steps differ from the receipts.")
        if missing := _missing(run, lines, receipts, max(kept.manifests, default=0)):
            faults.append(
                f"{len(missing):,} steps that were logged are not there, the first one {missing[0]:,}: lines are "
                "missing; bring it back from a copy."
            )
    for fault in faults:
        yield VerifiedPart(JOURNAL_PART, "off", f"{run.folder.journal}: {fault}")
    if faults:
        return
    if receipts is None:
        yield VerifiedPart(JOURNAL_PART, "holds", f"{lines.num:,} lines have their checksums; no receipts to compare.")
        return
    beyond = f" {rest:,} logged steps have no receipt." if rest else ""
    yield VerifiedPart(
        JOURNAL_PART, "holds",
        f"{lines.num:,} lines have their checksums; loss, gradient norm and learning rate of {compared:,} steps are "
        f"the receipts'.{beyond}",
    )  # fmt: skip


def _missing(run: OpenedRun, lines: JournalLines, receipts: Receipts, last: int) -> list[int]:
    """Return the steps up to the checkpoint of `last` that a run logs before it saves, and whose lines are missing.

    Which steps those are, a resume may change.
    """
    if any("ditlab.resume.tracking.every" in tags for _, tags in lines.tags):
        return []
    logged = np.array([step for step, *_ in lines.points], np.int64)
    steps = receipts.steps
    done = steps["step"][((steps["flags"] & LEFT_OUT) == 0) & (steps["step"] <= last)].astype(np.int64)
    due = done[(done % run.experiment.tracking.every == 0) | (done == 1)]
    return np.setdiff1d(due, logged).tolist()


def _differing(points: np.ndarray, receipts: Receipts) -> tuple[list[tuple[int, str, float, str]], int, int]:
    """Return (step, metric, value, recorded ones) of differences, how many steps were compared, and how many not.

    A step that was done several times may have any of its receipts: the journal keeps what came first.
    """
    rows = receipts.rows[(receipts.rows["flags"] & LEFT_OUT) == 0]
    order = np.argsort(rows["step"], kind="stable")
    rows, steps = rows[order], rows["step"][order]
    first = np.searchsorted(steps, points[:, 0].astype(np.uint64), "left")
    stop = np.searchsorted(steps, points[:, 0].astype(np.uint64), "right")
    off = []
    for column, (metric, name) in enumerate(COMPARED.items(), 1):
        values = points[:, column].astype(np.float32)
        place = np.minimum(first, max(0, len(rows) - 1))
        same = _equal(values, rows[name][place]) if len(rows) else np.zeros(len(points), bool)
        for index in np.flatnonzero(~same & (stop > first) & ~np.isnan(points[:, column])):
            candidates = rows[name][first[index] : stop[index]]
            if not _equal(candidates, values[index]).any():
                recorded = " or ".join(f"{value:.9g}" for value in candidates)
                off.append((int(points[index, 0]), metric, float(points[index, column]), recorded))
    covered = int((stop > first).sum())
    return sorted(off), covered, len(points) - covered


def _equal(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return (one == two) | (np.isnan(one) & np.isnan(two))


def check_tracking(run: OpenedRun, lines: JournalLines) -> VerifiedPart:
    """Compare each loss that MLflow has with the journal's of that step; the database is opened for reading alone."""
    try:
        uri = resolve_tracking_uri(run.record.tracking_uri or run.experiment.tracking.uri, run.home)
    except UserError as error:
        return VerifiedPart(TRACKING_PART, "not checked", str(error))
    if is_server(uri) or not uri.startswith("sqlite"):
        return VerifiedPart(
            TRACKING_PART, "not checked", "the run is tracked by a server, whose losses are not compared."
        )
    path = sqlite_path(uri)
    try:
        open_regular_file(path, None, follow=True).close()
        points = list(_points(path, run.folder.run_id))
    except FileNotFoundError:
        return VerifiedPart(TRACKING_PART, "not checked", f"{path} is not there.")
    except (OSError, sqlite3.Error) as error:
        return VerifiedPart(TRACKING_PART, "not checked", f"{path} cannot be read ({first_line(error)}).")
    logged: dict[int, set[float]] = {}
    for step, loss, *_ in lines.points:
        logged.setdefault(int(step), set()).add(loss)
    off = [(step, loss) for step, loss in points if loss not in logged.get(step, ())]
    if off:
        step, loss = off[0]
        known = " or ".join(f"{each:.9g}" for each in logged.get(step, ())) or "none"
        return VerifiedPart(
            TRACKING_PART, "off",
            f"{len(off):,} of {len(points):,} losses in {path} are not the journal's, the first one that of step "
            f"{step:,}: {loss:.9g}, and {known} in the journal.",
        )  # fmt: skip
    if not points:
        return VerifiedPart(TRACKING_PART, "not checked", f"{path} has no losses of the run.")
    return VerifiedPart(TRACKING_PART, "holds", f"{len(points):,} losses in {path} are the journal's.")


def _points(path: Path, run_id: str) -> Iterator[tuple[int, float]]:
    """Yield (step, loss). Raises sqlite3.Error for a file that is no database of MLflow's, or takes too long."""
    stop = time.monotonic() + SECONDS
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2.0)) as database:
        database.set_progress_handler(lambda: time.monotonic() > stop, 10_000)
        for step, value in database.execute(QUERY, (LOSS, run_id, MOST_POINTS)):
            yield int(step), float(value)
