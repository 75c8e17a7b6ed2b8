"""Runs to compare, made without training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ditlab_addons.compare.comparison import ComparedRun, RunCurve


def line(steps: Sequence[int], start: float, slope: float, pace: float = 1.0) -> RunCurve:
    """value = start + slope * step."""
    at = np.array(steps, dtype=float)
    return RunCurve(at, at * pace, start + slope * at)


def compared_run(run_id: str = "aaaa", **changes: Any) -> ComparedRun:
    """A run of 100 steps in 100 s, whose loss falls from 2 to 1."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "name": f"run-{run_id}",
        "family": "dit",
        "status": "finished",
        "step": 100,
        "batch_size": 10,
        "spec": {"name": run_id, "model.family": "dit", "objective.time.kind": "uniform"},
        "weights": ["velocity", "direction"],
        "data": "digits",
        "components": {"blocks": 900, "head": 100},
        "curves": {
            "train/loss": line(list(range(1, 101)), 2.0, -0.01),
            "eval/direction": line([0, 50, 100], 1.0, -0.005),
            "eval/velocity": line([0, 50, 100], 2.0, -0.01),
        },
        "samples_per_second": 10.0,
        "measured": {},
        "cost": "",
        "by_sample": lambda step: {},
        "line": (),
        "draws": {},
    }
    return ComparedRun(**{**values, **changes})
