"""Segment of a replay: consecutive steps by one group of workers, in the real training loop."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ditlab.checking.replay.observed_stepper import ObservedStepper, ObservedSteps
from ditlab.checkpoints.start_point import kept_scalars
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.loading.loader import WorkerBatches
from ditlab.data.loading.transfer import TransferredSteps
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.home import Home
from ditlab.runs.request import start_point
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, SilentReporter
from ditlab.training.trainer import StepLoop, Worker

ALWAYS = 2**31 - 1
"""Steps without a finite loss that a replay passes over, as the run has gone on from them."""
SPEEDS = ("train/samples_per_second", "train/data_wait")
"""Metrics of the replay's own speed."""


@dataclass(frozen=True)
class Segment:
    """Consecutive steps that were done by equally many workers under one spec."""

    first: int
    """First step (from 1)."""
    last: int
    workers: int
    threads: int | None
    """Threads of each worker; None: torch's number."""
    spec: Mapping[str, Any] = field(repr=False)
    """The experiment, resolved."""
    halvings: int = 0
    left_out: tuple[int, ...] = ()
    """Steps (from 1) whose batch is not trained on."""
    is_changed: bool = False
    """True for a spec that is not the run's own, as in a what-if."""


@dataclass(frozen=True)
class SegmentTask:
    """Everything that the workers of a segment need."""

    segment: Segment
    run_id: str
    home: str
    folder: str
    """Temporary folder of the replay."""
    source: str
    """Store of the checkpoint to begin from; empty: fresh weights, or a fork's parent."""
    source_step: int
    shown: frozenset[int]
    """Steps that are measured sample by sample."""
    hands_over: bool
    """True if the state after the last step is saved for the next segment."""


def replay_segment(rank: Rank, task: SegmentTask) -> ObservedSteps:
    """Do the steps of a segment on one worker; the body of its process."""
    home, segment = Home(Path(task.home)), task.segment
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    experiment = replayed_experiment(segment.spec)
    os.environ.update(experiment.resources.network.environment())
    data = open_data(experiment.data, home, verify=False, notify=_drop)
    seen = ObservedSteps()
    run = TrainingRun(
        experiment, data, plan_run(experiment, data), CheckpointStore.at(Path(task.folder, "checkpoints")), home,
        Path(task.folder, "swap"), MemoryPlan(segment.halvings, tuple(step - 1 for step in segment.left_out)),
        start_point(experiment, home, task.run_id),
    )  # fmt: skip
    worker = ReplayWorker(run, rank, _ReplayReporter(seen, segment.last), task, seen)
    try:
        worker.resume()
        worker.run()
    finally:
        worker.close()
    worker.release()
    return seen


def replayed_experiment(spec: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a segment: without evaluations, with each step logged, going on whatever the losses."""
    spec = dict(spec)
    spec["evaluation"] = {**spec["evaluation"], "every": None, "samples": 0, "quality": 0}
    spec["tracking"] = {**spec["tracking"], "every": 1}
    spec["training"] = {**spec["training"], "averages": None, "non_finite": {"policy": "skip", "limit": ALWAYS}}
    spec["checkpoint"] = {**spec["checkpoint"], "storage": None, "keep": 1, "keep_every": None}
    return class_for(spec).model_validate(spec)


class ReplayWorker(Worker):
    """Worker that begins from a given checkpoint, and raises what a run recovers from by other numbers."""

    def __init__(
        self, run: TrainingRun, rank: Rank, reporter: SilentReporter, task: SegmentTask, seen: ObservedSteps
    ) -> None:
        self._task, self._seen = task, seen
        super().__init__(run, rank, reporter)

    def resume(self) -> int:
        """Load the segment's checkpoint; without one, what the run itself began from."""
        task = self._task
        if not task.source:
            self._parts.checkpoints.load_newest(self._state)
            return self._state.step
        with CheckpointStore.at(task.source).open(task.source_step, verify=False) as reader:
            is_changed = task.segment.is_changed
            scalars = kept_scalars(reader.manifest, self._run.experiment) if is_changed else None
            self._parts.checkpoints.load(reader, self._state, scalars)
        return self._state.step

    def run(self) -> Any:
        """Do the segment's steps. Raises OutOfMemory where one does not fit."""
        return self._step_loop().run()

    def _step_loop(self) -> StepLoop:
        return ReplayLoop(self._parts, self._state, self._share, self._memory.skipped_steps, self._task, self._seen)


class ReplayLoop(StepLoop):
    """Step loop that observes its steps, and saves at the end alone, where another segment follows."""

    def __init__(self, *arguments: Any) -> None:
        *own, task, seen = arguments
        super().__init__(*own)
        parts, state, share = own[:3]
        self._task, self._seen = task, seen
        self._observed = self._stepper = ObservedStepper(
            parts.run, parts.rank, state, share, parts.inputs, parts.metrics.steps, parts.clock,
            shown=task.shown, seen=seen,
        )  # fmt: skip

    def _save(self) -> None:
        if self._task.hands_over and self._state.step == self._task.segment.last:
            super()._save()

    def _open_loader(self) -> TransferredSteps:
        loader = super()._open_loader()
        experiment, view = self._parts.run.experiment, self._parts.run.data.train
        batches = WorkerBatches(view, (), self._order, experiment.micro_size, self._share.micro_indices)
        self._observed.places = batches.places
        for step in range(self._task.segment.first, self._task.segment.last + 1):
            number = self._state.position // experiment.batch.size + step - 1 - self._state.step
            self._seen.indices[step] = self._order.batches(number, 1, batches.places).reshape(-1)
            self._seen.rows[step] = view.rows[self._seen.indices[step]]
        return loader


class _ReplayReporter(SilentReporter):
    """Reporter that keeps each step's metrics, and ends the loop after the segment's last step."""

    def __init__(self, seen: ObservedSteps, last: int) -> None:
        super().__init__(lambda: seen.done >= last, _drop, ProgressMarker())
        self._seen = seen
        self.metrics = self._keep

    def _keep(self, step: int, values: Mapping[str, float]) -> None:
        trained = {name: value for name, value in values.items() if name.startswith("train/") and name not in SPEEDS}
        self._seen.metrics.setdefault(step, {}).update(trained)


def _drop(*_: object) -> None:
    """Drop a message that the run gave when it was trained."""
