"""Losses in MLflow against the journal, where MLflow's store is a database on this machine."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checking.verify.journal_lines import JournalLines
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_plain
from ditlab.tracking.access import is_server, resolve_tracking_uri, sqlite_path

PART = "mlflow"
LOSS = "train/loss"
MOST_POINTS = 20_000
"""Points that are compared: the first ones, about 10,000 of a run of 10^6 steps under the default `tracking.budget`."""
SECONDS = 10.0
"""Time after which a query is ended."""
QUERY = """
    SELECT m.step, m.value FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid
    WHERE m.key = ? AND m.is_nan = 0 AND t.key = 'ditlab.run' AND t.value = ? ORDER BY m.step LIMIT ?
"""


def check_tracking(run: OpenedRun, lines: JournalLines) -> VerifiedPart:
    """Compare each loss that MLflow has with the journal's of that step; the database is opened for reading alone."""
    try:
        uri = resolve_tracking_uri(run.record.tracking_uri or run.experiment.tracking.uri, run.home)
    except UserError as error:
        return VerifiedPart(PART, "not checked", str(error))
    if is_server(uri) or not uri.startswith("sqlite"):
        return VerifiedPart(PART, "not checked", "the run is tracked by a server, whose losses are not compared.")
    path = sqlite_path(uri)
    try:
        open_plain(path, None, follow=True).close()
        points = list(_points(path, run.folder.run_id))
    except FileNotFoundError:
        return VerifiedPart(PART, "not checked", f"{path} is not there.")
    except (OSError, sqlite3.Error) as error:
        return VerifiedPart(PART, "not checked", f"{path} cannot be read ({first_line(error)}).")
    logged: dict[int, set[float]] = {}
    for step, loss, *_ in lines.points:
        logged.setdefault(int(step), set()).add(loss)
    off = [(step, loss) for step, loss in points if loss not in logged.get(step, ())]
    if off:
        step, loss = off[0]
        known = " or ".join(f"{each:.9g}" for each in logged.get(step, ())) or "none"
        return VerifiedPart(
            PART, "off",
            f"{len(off):,} of {len(points):,} losses in {path} are not the journal's, the first one that of step "
            f"{step:,}: {loss:.9g}, and {known} in the journal.",
        )  # fmt: skip
    if not points:
        return VerifiedPart(PART, "not checked", f"{path} has no losses of the run.")
    return VerifiedPart(PART, "holds", f"{len(points):,} losses in {path} are the journal's.")


def _points(path: Path, run_id: str) -> Iterator[tuple[int, float]]:
    """Yield (step, loss). Raises sqlite3.Error for a file that is no database of MLflow's, or takes too long."""
    stop = time.monotonic() + SECONDS
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2.0)) as database:
        database.set_progress_handler(lambda: time.monotonic() > stop, 10_000)
        for step, value in database.execute(QUERY, (LOSS, run_id, MOST_POINTS)):
            yield int(step), float(value)
