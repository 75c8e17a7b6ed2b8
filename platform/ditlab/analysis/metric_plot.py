"""Curves of a run's metrics over its steps."""

from __future__ import annotations

from collections.abc import Mapping

from denoisers.figures import Curve, Figure, Lines
from ditlab.analysis.plot import Plot
from ditlab.reports.figures import loss_figure, smoothed
from ditlab.tracking.history import Series

SMOOTHED_FROM = 100
"""Points from which on a curve gets a running mean."""


def metric_plot(history: Mapping[str, Series]) -> Plot:
    """One panel a metric; a curve of many points gets its running mean."""
    return Plot(Figure([_panel(name, series) for name, series in history.items()]))


def loss_plot(history: Mapping[str, Series]) -> Plot:
    """Training loss, raw and smoothed, and the held-out metrics."""
    return Plot(loss_figure(history))


def _panel(name: str, series: Series) -> Lines:
    steps, values = series.steps, series.values
    curves = [Curve(steps, values, "as logged")]
    if len(values) >= SMOOTHED_FROM:
        window = len(values) // 50
        curves.append(Curve(steps, smoothed(values, window), f"mean of {window} points"))
    return Lines(curves, name, "step", log_y=bool(len(values) and (values > 0).all() and name.endswith("loss")))
