"""A sweep's result as notebooks show it."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from ditlab.notebook_html import card, paragraph, status, table
from ditlab.reports.sweeps.ranking import rank
from ditlab.reports.sweeps.records import SweepSummary

MOST_TRIALS = 50


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
