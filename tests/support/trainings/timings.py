"""Times of trainings: the metrics that no two runs share, and logs of phases on a clock that a test
turns.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ditlab.engine.distributed import Rank
from ditlab.engine.phase_clock import PhaseClock
from ditlab.training.timing import PhaseLog
from support.trainings.workers import Recorder, tiny

TIMINGS = (
    "train/samples_per_second",
    "train/data_wait",
    "time/",
    "perf/",
    "run/speed",
    "run/seconds",
    "run/core_hours",
    "run/gpu_hours",
    "run/price",
    "system/",
)
"""Prefixes of their names."""


def phase_log(
    world_size: int = 1, measure: Callable[..., Any] = lambda *_: None, **changes: Any
) -> tuple[PhaseLog, Recorder, Callable[[float], None]]:
    """The first worker's log, what it reports to, and a function that lets seconds pass."""
    now, recorder, run = [0.0], Recorder(), SimpleNamespace(experiment=tiny(**changes))

    def tick(seconds: float) -> None:
        now[0] += seconds

    rank, clock = Rank(0, world_size, 0, torch.device("cpu")), PhaseClock(lambda: now[0])
    log: Any = PhaseLog(run, rank, recorder, clock, lambda: now[0], measure)  # type: ignore[arg-type]
    return log, recorder, tick
