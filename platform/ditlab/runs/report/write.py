"""The page of a run as one HTML file: on request, and at the end of each training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ditlab.home import Home, RunFolder
from ditlab.reports.page import render_html, write_text
from ditlab.reports.run.page import run_page
from ditlab.runs.report.collect import ReportSource, collect, report_source
from ditlab.runs.report.pictures import EmbeddedPictures
from ditlab.spec.experiment import Experiment
from ditlab.tracking.tracker import RunTracker

REPORT = "report.html"
"""Name of the page in a run's folder."""
MOST_BYTES = 20_000_000
"""Bytes that a page stays below."""


def write_run_report(source: ReportSource, path: Path | None = None) -> Path:
    """Write the page of a run to `path` (None: `report.html` in its folder), and return the file's path.

    Raises OSError where the disk refuses.
    """
    html = render_html(run_page(collect(source, EmbeddedPictures())))
    if len(html.encode(errors="replace")) > MOST_BYTES:
        html = render_html(run_page(collect(source, EmbeddedPictures(most_steps=0))))
    return write_text(html, path or source.folder.path / REPORT)


def log_run_report(
    tracker: RunTracker, experiment: Experiment, home: Home, status: str, warn: Callable[[str], None]
) -> None:
    """Write the page of a run that ends with `status`, and log it as the run's artifact. Warns where it cannot."""
    if not experiment.tracking.report:
        return
    folder: RunFolder = tracker.folder
    try:
        path = write_run_report(report_source(home, folder, experiment=experiment, ended=status))
    except Exception as error:  # a page must never cost a run its end; `ditlab report` raises the same error
        warn(f"the run's page could not be written ({type(error).__name__}: {error}); `ditlab report` tries again.")
        return
    tracker.log_artifact(path)
