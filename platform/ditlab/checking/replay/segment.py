"""Segments of a replay: consecutive steps by one group of workers, in the real training loop, one after the other.

The plan of a replay is a pure decision: from which checkpoint, through which segments of equal settings.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.checking.process_group import run_workers
from ditlab.checking.replay.history import Execution, StepHistory
from ditlab.checking.replay.stepper import ObservedSteps, SampleLoss, StepObserver
from ditlab.checkpoints.start_point import kept_scalars
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.engine.update_norms import ParameterNorms
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import joined_digest
from ditlab.runs.launch import start_point
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.recovery import MemoryPlan, OutOfMemory
from ditlab.training.trainer import Trainer

ALWAYS = 2**31 - 1
"""Steps without a finite loss that a replay passes over, as the run has gone on from them."""
SpecOf = Callable[[Execution], Mapping[str, Any]]
"""Returns the resolved spec by which a step was done."""


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
    microbatch_splits: int = 0
    """Number of times the micro-batch was halved."""
    skipped: tuple[int, ...] = ()
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
    data = open_data(experiment.data, home, verify=False, notify=lambda *_: None)  # the run gave its messages
    seen = ObservedSteps()
    run = TrainingRun(
        experiment, data, plan_run(experiment, data), CheckpointStore.at(Path(task.folder, "checkpoints")), home,
        Path(task.folder, "swap"), MemoryPlan(segment.microbatch_splits, tuple(step - 1 for step in segment.skipped)),
        start_point(experiment, home, task.run_id),
    )  # fmt: skip
    trainer = Trainer(run, rank, StepObserver(task.shown, range(segment.first, segment.last + 1), seen))
    try:
        _load(trainer, task)
        trainer.train_span(segment.last, saves=task.hands_over)
    finally:
        trainer.close()
    trainer.release()
    return seen


def _load(trainer: Trainer, task: SegmentTask) -> None:
    """Load the segment's checkpoint; without one, what the run itself began from."""
    if not task.source:
        trainer.checkpoints.load_newest(trainer.state)
        return
    with CheckpointStore.at(task.source).open(task.source_step, verify=False) as reader:
        is_changed = task.segment.is_changed
        scalars = kept_scalars(reader.manifest, trainer.run.experiment) if is_changed else None
        trainer.checkpoints.load(reader, trainer.state, scalars)


def replayed_experiment(spec: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a segment: without evaluations, with each step logged, going on whatever the losses."""
    spec = dict(spec)
    spec["evaluation"] = {**spec["evaluation"], "every": None, "samples": 0, "quality": 0}
    spec["tracking"] = {**spec["tracking"], "every": 1}
    spec["training"] = {**spec["training"], "averages": None, "non_finite": {"policy": "skip", "limit": ALWAYS}}
    spec["checkpoint"] = {**spec["checkpoint"], "storage": None, "keep": 1, "keep_every": None}
    return class_for(spec).model_validate(spec)


@dataclass(frozen=True)
class ReplayPlan:
    """One way through a run's steps, and those of them that are asked for."""

    origin: int
    """Step of the state to begin from."""
    is_checkpoint: bool
    """True for one of the run's own checkpoints; False for what the run itself began from."""
    segments: tuple[Segment, ...]
    way: tuple[Execution, ...]
    """Executions that are done again, from the origin on."""
    executions: tuple[Execution, ...]
    """Executions of the way that are replayed for their own sake, in the order of their steps."""
    variant: Segment | None = None
    """The last step once more under another spec, from the same state."""

    @property
    def num_steps(self) -> int:
        """Steps that are trained."""
        return self.segments[-1].last - self.origin

    def with_variant(self, spec: Mapping[str, Any], workers: int) -> ReplayPlan:
        """Return the plan with its last step done once more under another spec, from the same state."""
        *before, final = self.segments
        last = final.last
        if final.first < last:
            earlier = tuple(step for step in final.skipped if step < last)
            before.append(replace(final, last=last - 1, skipped=earlier))
        own = replace(final, first=last, skipped=tuple(step for step in final.skipped if step == last))
        variant = replace(own, spec=spec, workers=workers, skipped=(), is_changed=True)
        return replace(self, segments=(*before, own), variant=variant)


def plan_replay(
    history: StepHistory, targets: Sequence[Execution], checkpoints: Collection[int], spec_of: SpecOf
) -> list[ReplayPlan]:
    """Plan the replay of some executions, those that lie on one way together.

    `checkpoints` are the steps of the run's whole ones. Each way that a kill or a roll-back cut off
    takes a pass of its own, and so does a target that a later checkpoint brings nearer.
    """
    plans, left = [], sorted(targets, key=lambda each: each.step)
    while left:
        way = history.lineage(left[-1])
        known = {id(each) for each in way}
        steps = {each.step for each in way if not each.is_recorded}
        taken = [each for each in left if id(each) in known or (not each.is_recorded and each.step in steps)]
        left = [each for each in left if not any(each is other for other in taken)]
        usable = [
            step for step in checkpoints if history.first < step < way[-1].step and history.is_final_at(way, step)
        ]
        plans += [_plan(history, way, part, usable, spec_of) for part in _apart(taken, usable)]
    return plans


def _apart(targets: Sequence[Execution], usable: Collection[int]) -> list[list[Execution]]:
    """Cut targets on one way, by step, where a checkpoint behind one saves steps on the way to the next."""
    parts: list[list[Execution]] = []
    for target in targets:
        if parts and not any(parts[-1][-1].step < step < target.step for step in usable):
            parts[-1].append(target)
        else:
            parts.append([target])
    return parts


def _plan(
    history: StepHistory,
    way: Sequence[Execution],
    targets: Sequence[Execution],
    usable: Collection[int],
    spec_of: SpecOf,
) -> ReplayPlan:
    first, last = targets[0].step, targets[-1].step
    origin = max((step for step in usable if step < first), default=history.first)
    segments: list[Segment] = []
    done = tuple(way[origin - history.first : last - history.first])
    for execution in done:
        spec = with_workers(spec_of(execution), execution.workers)
        settings = (execution.workers, execution.threads, execution.microbatch_splits, spec)
        skipped = (execution.step,) if execution.skipped else ()
        before = segments[-1] if segments else None
        if before and (before.workers, before.threads, before.microbatch_splits, before.spec) == settings:
            segments[-1] = replace(before, last=execution.step, skipped=(*before.skipped, *skipped))
        else:
            segments.append(
                Segment(
                    execution.step, execution.step, execution.workers, execution.threads, spec,
                    execution.microbatch_splits, skipped,
                )
            )  # fmt: skip
    return ReplayPlan(origin, origin > history.first, tuple(segments), done, tuple(targets))


def with_workers(spec: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
    """Return a spec for so many workers; that of an elastic run, whose range decides the micro-batches, as it is."""
    resources = spec["resources"]
    if not isinstance(resources["workers"], int) or resources["workers"] == workers:
        return spec
    return {**spec, "resources": {**resources, "workers": workers}}


@dataclass(frozen=True)
class ReplayedStep:
    """One step as it was done again."""

    execution: Execution
    """The execution of the step that was replayed."""
    metrics: Mapping[str, float]
    """Loss, components, gradient norm and learning rate under their MLflow names; empty for a skipped step."""
    rows: np.ndarray
    """Rows of the training store by place in the global batch, int64 (batch.size,)."""
    indices: np.ndarray
    """Index of each row's sample in the training view, int64, in the shape of `rows`."""
    samples: tuple[SampleLoss, ...] = ()
    """Samples by place; empty where the step was not measured sample by sample."""
    norms: Mapping[str, ParameterNorms] | None = None
    """Norms by parameter; None where the step was not measured."""
    clip_factor: float = 1.0
    """Number that clipping divided the gradient by; 1 for none."""
    digest: int = 0
    """Digest of samples and draws, as receipts have it; 0 for a skipped step."""

    is_variant: bool = False
    """True for the step under another spec than the run's."""

    @property
    def step(self) -> int:
        """Number of the step, from 1."""
        return self.execution.step

    @property
    def loss(self) -> float | None:
        """Mean loss of the step before its update; None for a skipped step."""
        return self.metrics.get("train/loss")

    @property
    def norm(self) -> float | None:
        """Gradient norm before clipping."""
        return self.metrics.get("train/grad_norm")

    @property
    def clipped_norm(self) -> float | None:
        """Gradient norm after clipping."""
        return None if self.norm is None else self.norm / self.clip_factor

    @property
    def update_norm(self) -> float | None:
        """Norm of the change of the float32 weights; None where it was not measured."""
        return math.sqrt(sum(each.update**2 for each in self.norms.values())) if self.norms else None


def run_plan(
    plan: ReplayPlan, run_id: str, home: Home, checkpoints: CheckpointStore, use_gpu: bool, shown: Collection[int] = (),
    progress: Progress = ignore_progress,
) -> list[ReplayedStep]:  # fmt: skip
    """Do the segments of a plan, each with its own workers; return the steps that the plan is for.

    `shown`: steps to measure sample by sample. Nothing is written but a temporary folder, which is removed.

    Raises:
        RunFailed: a step does not fit into this machine's memory.
    """
    wanted = {execution.step: execution for execution in plan.executions}
    found: list[ReplayedStep] = []
    with tempfile.TemporaryDirectory(prefix="ditlab-replay-") as folder:
        source, step = (checkpoints.location, plan.origin) if plan.is_checkpoint else ("", 0)
        for segment in plan.segments:
            progress(_describe(segment), 0, None, "")
            task = SegmentTask(
                segment, run_id, str(home.root), folder, source, step, frozenset(shown),
                hands_over=segment is not plan.segments[-1],
            )  # fmt: skip
            parts = _run_segment(task, use_gpu)
            found += [
                _joined(wanted[number], parts) for number in range(segment.first, segment.last + 1) if number in wanted
            ]
            if segment is plan.segments[-1] and plan.variant:
                progress(f"step {segment.last} under another spec", 0, None, "")
                parts = _run_segment(replace(task, segment=plan.variant), use_gpu)
                found.append(replace(_joined(wanted[segment.last], parts), is_variant=True))
            source, step = str(Path(folder, "checkpoints")), segment.last
    return found


def _run_segment(task: SegmentTask, use_gpu: bool) -> list[ObservedSteps]:
    segment = task.segment
    try:
        return run_workers(replay_segment, (task,), segment.workers, use_gpu, segment.threads)
    except OutOfMemory as error:
        raise RunFailed(
            f"step {error.step + 1} does not fit into this machine's memory with {segment.workers} workers "
            f"({error.message}); replay it on a larger one.",
            kind="out_of_memory",
        ) from error


def _joined(execution: Execution, parts: Sequence[ObservedSteps]) -> ReplayedStep:
    """Join what the workers observed of a step: their places follow each other in the order of their ranks."""
    step, first = execution.step, parts[0]
    rows = np.concatenate([part.rows[step] for part in parts])
    samples = [sample for part in parts for sample in part.samples.get(step, ())]
    digest = joined_digest([part.digests.get(step, 0) for part in parts])
    indices = np.concatenate([part.indices[step] for part in parts])
    return ReplayedStep(
        execution, first.metrics.get(step, {}), rows, indices, tuple(sorted(samples, key=lambda sample: sample.place)),
        first.norms.get(step), first.clip_factors.get(step, 1.0), digest,
    )  # fmt: skip


def _describe(segment: Segment) -> str:
    steps = f"step {segment.first}" if segment.first == segment.last else f"steps {segment.first} to {segment.last}"
    return f"{steps} on {segment.workers} worker{'s' if segment.workers > 1 else ''}"
