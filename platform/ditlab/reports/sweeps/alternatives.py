"""Alternative texts of a sweep's figures: what each shows, with the numbers that matter."""

from __future__ import annotations

from ditlab.reports.formatting import format_number
from ditlab.reports.sweeps.importance import Importance
from ditlab.reports.sweeps.ranking import best
from ditlab.reports.sweeps.records import SweepSummary
from ditlab.reports.sweeps.summary import counts, settings


def about_objective(summary: SweepSummary) -> str:
    """Alternative text of the metric by trial, or of the trade-off of two metrics."""
    if len(summary.metrics) == 1:
        return f"{summary.metrics[0]} of each trial ({counts(summary)}), by number. {_best(summary)}"
    return f"{summary.metrics[1]} over {summary.metrics[0]}, a mark a trial ({counts(summary)}). {_best(summary)}"


def about_effects(summary: SweepSummary, shares: Importance) -> str:
    """Alternative text of the panels by axis."""
    ordered = sorted(summary.axes, key=lambda axis: -shares.shares.get(axis.path, 0.0))
    names = [
        f"{axis.path} ({100 * shares.shares[axis.path]:.0f} % of the importance)" if shares.shares else axis.path
        for axis in ordered
    ]
    what = f"{summary.metrics[0]} over each axis, a panel an axis and a mark a trial"
    return f"{what}: {', '.join(names)}. {_best(summary)}"


def about_parallel(summary: SweepSummary) -> str:
    """Alternative text of the parallel coordinates."""
    names = ", ".join(axis.path for axis in summary.axes)
    what = f"Parallel coordinates, a line a trial ({counts(summary)})"
    return f"{what}: {names}, then {summary.metrics[0]}. {_best(summary)}"


def about_curves(summary: SweepSummary) -> str:
    """Alternative text of the learning curves."""
    what = f"{summary.metrics[0]} and the training loss over steps"
    return f"{what}, a line a trial ({counts(summary)}). {_best(summary)}"


def _best(summary: SweepSummary) -> str:
    first = best(summary)
    if first is None:
        return "No trial has a value yet."
    values = ", ".join(f"{name} {format_number(first.metrics[name])}" for name in summary.metrics)
    chosen = settings(summary, first, {})
    return f"Best: trial {first.number}, {values}{f', with {chosen}' if chosen else ''}."
