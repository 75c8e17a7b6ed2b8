"""Many short trainings of the platform's own trainer, each in a process that is used again, without
Ray or MLflow.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ditlab.engine.distributed import single_process
from ditlab.spec.experiment import Experiment
from ditlab.training.trainer import train
from support.trainings.workers import Recorder, training_run

Judge = Callable[[int, dict[str, float]], bool]
"""(step, metrics) of an evaluation -> True if the training goes on."""
JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
HOMES = Path(tempfile.gettempdir()) / "ditlab-short-trainings"
"""Stores of built-in data, which are written once for all trainings."""


@dataclass
class JudgedRecorder(Recorder):
    """A recorder whose judge sees every evaluation but the one before the first step, and may stop
    the training.
    """

    judge: Judge = lambda step, metrics: True
    stops: bool = False
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        found = {name: value for name, value in values.items() if name.startswith("eval/")}
        if found and step:
            self.evaluations[step] = found
            self.stops = self.stops or not self.judge(step, found)

    def should_stop(self) -> bool:
        return self.stops


def train_short(
    experiment: Experiment, folder: Path | None = None, judge: Judge | None = None
) -> JudgedRecorder:
    """Train in this process, from the newest checkpoint in `folder` (None: one that is deleted)
    where there is one.
    """
    recorder = JudgedRecorder(judge=judge) if judge else JudgedRecorder()
    with tempfile.TemporaryDirectory() as name, single_process(use_gpu=False) as rank:
        train(training_run(experiment, HOMES, folder or Path(name)), rank, recorder)
    return recorder


def final_value(experiment: Experiment, metric: str) -> float:
    """Train, and return a metric of the last evaluation."""
    return train_short(experiment).evaluations[experiment.training.steps or 0][metric]


def in_processes(work: Callable[[JobT], ResultT], jobs: Sequence[JobT], num: int) -> list[ResultT]:
    """Do the jobs in `num` processes, and return their results in the jobs' order."""
    with ProcessPoolExecutor(num, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(work, jobs))
