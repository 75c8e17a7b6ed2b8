"""Tiny runs and their forks, without MLflow."""

from support.trainings.workers import tiny

SILENT = "http://127.0.0.1:9"
"""An MLflow server that does not answer: the journal keeps all."""


def small(**changes):
    """`tiny` without MLflow, pages and metrics of the machine."""
    return tiny(
        **{"tracking": {"system_metrics": False, "uri": SILENT, "report": False}, **changes}
    )
