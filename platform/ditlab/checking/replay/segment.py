"""Segments of a replay: consecutive steps by one group of workers, in the real training loop, one after the other.

The plan of a replay is a pure decision: from which checkpoint, through which segments of equal settings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.checking.process_group import open_in_worker, run_workers
from ditlab.checking.replay.history import Execution, StepHistory
from ditlab.checking.replay.stepper import ReplayedStep, StepObserver
from ditlab.checkpoints.start_point import kept_scalars
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import joined_digest
from ditlab.runs.launch import start_point
from ditlab.training.plan import TrainingRun, plan_run
from ditlab.training.recovery import MemoryPlan, OutOfMemory
from ditlab.training.trainer import Trainer

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


def replay_segment(rank: Rank, task: SegmentTask) -> dict[int, ReplayedStep]:
    """Do the steps of a segment on one worker, the body of its process; return what it observed by step.

    Nothing is evaluated, each step is logged, and training goes on whatever the losses, as the run has.
    """
    segment = task.segment
    experiment, home, data = open_in_worker(segment.spec, task.home)
    experiment = experiment.replace_all({
        "evaluation.every": None, "evaluation.samples": 0, "evaluation.quality": 0, "tracking.every": 1,
        "training.averages": None, "training.non_finite": {"policy": "skip", "limit": 2**31 - 1},
        "checkpoint.storage": None, "checkpoint.keep": 1, "checkpoint.keep_every": None,
    })  # fmt: skip
    memory = MemoryPlan(segment.microbatch_splits, tuple(step - 1 for step in segment.skipped))
    run = TrainingRun(
        experiment, data, plan_run(experiment, data), CheckpointStore.at(Path(task.folder, "checkpoints")), home,
        Path(task.folder, "swap"), memory, start_point(experiment, home, task.run_id),
    )  # fmt: skip
    observer = StepObserver(task.shown, range(segment.first, segment.last + 1))
    with Trainer(run, rank, observer) as trainer:
        if task.source:
            with CheckpointStore.at(task.source).open(task.source_step, verify=False) as reader:
                scalars = kept_scalars(reader.manifest, experiment) if segment.is_changed else None
                trainer.checkpoints.load(reader, trainer.state, scalars)
        else:  # what the run itself began from
            trainer.checkpoints.load_newest(trainer.state)
        trainer.train_span(segment.last, saves=task.hands_over)
    return observer.seen


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
            before.append(replace(final, last=last - 1, skipped=tuple(step for step in final.skipped if step < last)))
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

    def settings(execution: Execution) -> tuple[int, int | None, int, Mapping[str, Any]]:
        """Return workers, threads, splits, and the spec for them: an elastic range decides the micro-batches, stays."""
        spec, workers = spec_of(execution), execution.workers
        resources = spec["resources"]
        if isinstance(resources["workers"], int):
            spec = {**spec, "resources": {**resources, "workers": workers}}
        return workers, execution.threads, execution.microbatch_splits, spec

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
        groups: list[list[Execution]] = []
        for target in taken:
            if groups and not any(groups[-1][-1].step < step < target.step for step in usable):
                groups[-1].append(target)
            else:
                groups.append([target])
        for executions in groups:
            begin = max((step for step in usable if step < executions[0].step), default=history.first)
            done = tuple(way[begin - history.first : executions[-1].step - history.first])
            segments = []
            for (workers, threads, splits, spec), part in groupby(done, settings):
                steps_of = list(part)
                skipped = tuple(each.step for each in steps_of if each.skipped)
                ends = steps_of[0].step, steps_of[-1].step
                segments.append(Segment(*ends, workers, threads, spec, splits, skipped))
            plans.append(ReplayPlan(begin, begin > history.first, tuple(segments), done, tuple(executions)))
    return plans


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
        variants = [plan.variant] if plan.variant else []
        for segment in (*plan.segments, *variants):
            is_last = segment is plan.segments[-1] or segment.is_changed
            steps = f"{segment.first:,} to {segment.last:,}" if segment.first < segment.last else f"{segment.last:,}"
            other = " under another spec" if segment.is_changed else ""
            progress(f"replaying step {steps}{other}; workers: {segment.workers}", 0, None, "")
            task = SegmentTask(
                segment, run_id, str(home.root), folder, source, step, frozenset(shown), hands_over=not is_last
            )
            try:
                parts = run_workers(replay_segment, (task,), segment.workers, use_gpu, segment.threads)
            except OutOfMemory as error:
                raise RunFailed(
                    f"step {error.step + 1} does not fit into this machine's memory with {segment.workers} workers "
                    f"({error.message}); replay it on a larger one.",
                    kind="out_of_memory",
                ) from error
            for number in range(segment.first, segment.last + 1):
                if number in wanted:
                    joined = _joined(wanted[number], [part[number] for part in parts])
                    found.append(replace(joined, is_variant=segment.is_changed))
            if not is_last:
                source, step = str(Path(folder, "checkpoints")), segment.last
    return found


def _joined(execution: Execution, parts: Sequence[ReplayedStep]) -> ReplayedStep:
    """Join what the workers observed of a step: their places follow each other in the order of their ranks."""
    samples = sorted((sample for part in parts for sample in part.samples), key=lambda sample: sample.place)
    return replace(
        parts[0], execution=execution, rows=np.concatenate([part.rows for part in parts]), samples=samples,
        indices=np.concatenate([part.indices for part in parts]), digest=joined_digest([part.digest for part in parts]),
    )  # fmt: skip
