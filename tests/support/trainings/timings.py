"""Times of trainings: the metrics that no two runs share, and logs of phases on a clock that a test
turns.
"""

from types import SimpleNamespace

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


def phase_log(world_size=1, measure=lambda *_: None, **changes):
    """The first worker's log, what it reports to, and a function that lets seconds pass."""
    now, recorder, run = [0.0], Recorder(), SimpleNamespace(experiment=tiny(**changes))

    def tick(seconds):
        now[0] += seconds

    rank, clock = Rank(0, world_size, 0, torch.device("cpu")), PhaseClock(lambda: now[0])
    log = PhaseLog(run, rank, recorder, clock, lambda: now[0], measure)  # type: ignore[arg-type]
    return log, recorder, tick
