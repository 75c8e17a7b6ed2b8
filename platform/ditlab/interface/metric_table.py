"""Metrics of a run as a table of Arrow."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ditlab.tracking.history import Series


def metric_table(chosen: Mapping[str, Series]) -> pa.Table:
    """A row a step, in the order of the steps: `step`, `time` of its first point, and a column a metric."""
    times: dict[int, int] = {}
    for series in chosen.values():
        for step, time in zip(series.steps.tolist(), series.times.tolist(), strict=True):
            times[step] = min(time, times.get(step, time))
    steps = sorted(times)
    columns = {
        "step": pa.array(steps, pa.int64()),
        "time": pa.array([times[step] for step in steps], pa.timestamp("ms", tz="UTC")),
    }
    for name, series in chosen.items():
        values = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        columns[name] = pa.array([values.get(step) for step in steps], pa.float64())
    return pa.table(columns)
