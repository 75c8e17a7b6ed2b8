"""Pages of runs as files, and files as runs' artifacts. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ditlab.errors import UserError, cannot_write
from ditlab.home import Home, RunFolder


def write_report(home: Home, folder: RunFolder, path: str | Path | None = None) -> Path:
    """Write the page of a run to `path` (None: `report.html` in its folder); return the file's
    path. Raises UserError where the disk refuses, and where the run's record cannot be read."""
    from ditlab.runs.page import REPORT, write_run_report

    place = folder.path / REPORT if path is None else Path(path)
    if place.is_dir():
        raise UserError(f"--out {place} is a folder; name a file, such as {place / REPORT}.")
    if os.path.lexists(place) and not place.is_file():
        raise UserError(
            f"--out {place} is no plain file whose place a page may take; name another file."
        )
    try:
        return write_run_report(home, folder, place)
    except OSError as error:
        raise cannot_write(place, error, "name another place with --out") from error


def renew_report(home: Home, folder: RunFolder, warn: Callable[[str], None]) -> None:
    """Write the page of a run again and log it, if one was written at its end. A disk that refuses
    is a warning.
    """
    from ditlab.runs.page import REPORT
    from ditlab.spec.files import load_recorded_experiment

    if (
        not load_recorded_experiment(folder.spec).tracking.report
        or not (folder.path / REPORT).is_file()
    ):
        return
    try:
        page = write_report(home, folder)
    except UserError as error:
        warn(str(error))
        return
    log_files(home, folder, [page], warn)


def log_files(
    home: Home,
    folder: RunFolder,
    files: Sequence[Path],
    warn: Callable[[str], None],
    place: str = "",
) -> int:
    """Log files as a run's artifacts, below `place`; return how many of the run's records wait for
    MLflow. Raises UserError where what is added would go into the home from which this one was
    copied."""
    from ditlab.analysis.opened_run import logged_records
    from ditlab.spec.files import load_recorded_experiment
    from ditlab.tracking.tracker import RunTracker

    home.check_place()
    tracking = load_recorded_experiment(folder.spec).tracking
    with logged_records(
        RunTracker(folder, tracking.uri, home, warn=warn, budget=tracking.budget)
    ) as tracker:
        for file in files:
            tracker.log_artifact(file, place)
    return tracker.num_unsent
