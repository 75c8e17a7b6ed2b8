"""Comparison of runs: a page, its pictures and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.analysis.comparison.runs import open_runs, summarise
from ditlab.analysis.comparison.samples import SampleSettings, add_samples
from ditlab.analysis.logged_records import logged_records
from ditlab.analysis.opened_run import OpenedRun
from ditlab.analysis.saved_run import default_device
from ditlab.analysis.user_errors import output_folder, writing
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.eligibility import QUALITY_NOTE
from ditlab.reports.comparison_page import write_comparison
from ditlab.reports.comparison_records import ComparedRun, Comparison
from ditlab.reports.comparison_summary import summary_text
from ditlab.runs.relocation import check_run_place

FEWEST_SAMPLES = 100
"""Fewest samples for quality metrics: fewer than the features that quality is measured on give figures of chance."""


@dataclass(frozen=True)
class RunComparison:
    """A comparison of runs, written as a page."""

    files: list[Path]
    """`comparison.html` (one file), `comparison.md` and the pictures."""
    runs: list[ComparedRun]
    """The compared runs: parameters, curves, speed, samples and their quality."""
    summary: str
    """The result in a sentence or two."""
    unsent: dict[str, int] = field(default_factory=dict)
    """Records that wait for MLflow, by each run that the page was added to: 0 where it has arrived."""


def compare_runs(
    names: Sequence[str],
    home: Home,
    warn: Callable[[str], None],
    progress: Progress = ignore_progress,
    *,
    out: Path | None,
    samples: int,
    grid: int,
    seed: int,
    batch: int,
    log: bool,
) -> RunComparison:
    """Compare the runs that `names` name, and write the page into `out` (None: `comparisons/` below DITLAB_HOME).

    `samples` (0, or at least FEWEST_SAMPLES) are drawn from each run for quality metrics, `grid` are shown; with `log`
    the page becomes an artifact of every run. Raises UserError for runs that cannot be compared.
    """
    if 0 < samples < FEWEST_SAMPLES:
        raise UserError(f"--samples {samples} are too few for quality metrics; give {FEWEST_SAMPLES} or more, or 0.")
    opened = open_runs(names, home, warn, progress)
    for run in opened if log else ():
        check_run_place(home, run.folder)
    name = "-".join(run.folder.run_id for run in opened)
    folder = output_folder(out or home.root / "comparisons" / name)
    settings = SampleSettings(samples, grid, seed, batch, default_device())
    compared = add_samples(opened, [summarise(run) for run in opened], settings)
    progress("drawing the page", 0, None, "")
    with writing(folder):
        comparison = Comparison(compared, seed, batch, settings.device.type, QUALITY_NOTE)
        files = write_comparison(comparison, folder)
    unsent = _log(opened, files[0], name, progress) if log else {}
    return RunComparison(files, compared, summary_text(comparison), unsent)


def _log(opened: Sequence[OpenedRun], page: Path, name: str, progress: Progress) -> dict[str, int]:
    """Add the page to every run; return the numbers of records that have not reached MLflow, by run."""
    unsent: dict[str, int] = {}
    for run in opened:
        progress("sending the page to MLflow", len(unsent), len(opened), "runs")
        with logged_records(run.tracker()) as records:
            records.tracker.log_artifact(page, f"comparisons/{name}")
        unsent[run.folder.run_id] = records.num_unsent
    return unsent
