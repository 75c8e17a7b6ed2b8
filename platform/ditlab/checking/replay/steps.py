"""Replay of steps: the segments of a plan, one after the other, in a temporary folder."""

import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ditlab.checking.process_group import run_workers
from ditlab.checking.replay.course.course import Execution
from ditlab.checking.replay.observed_stepper import ObservedSteps, SampleLoss
from ditlab.checking.replay.plan import ReplayPlan
from ditlab.checking.replay.segment import Segment, SegmentTask, replay_segment
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.update_norms import ParameterNorms
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.receipts.records import joined_digest
from ditlab.training.recovery import OutOfMemory


@dataclass(frozen=True)
class ReplayedStep:
    """One step as it was done again."""

    execution: Execution
    """The doing of the step that was replayed."""
    metrics: Mapping[str, float]
    """Loss, components, gradient norm and learning rate under their MLflow names; empty for a step left out."""
    rows: np.ndarray
    """Rows of the training store by place in the global batch, int64 (batch.size,)."""
    indices: np.ndarray
    """The same samples by their index in the training view."""
    samples: tuple[SampleLoss, ...] = ()
    """Samples by place; empty where the step was not measured sample by sample."""
    norms: Mapping[str, ParameterNorms] | None = None
    """Norms by parameter; None where the step was not measured."""
    clip_factor: float = 1.0
    """Number that clipping divided the gradient by; 1 for none."""
    digest: int = 0
    """Digest of samples and draws, as receipts have it; 0 for a step left out."""

    is_variant: bool = False
    """True for the step under another spec than the run's."""

    @property
    def step(self) -> int:
        """Number of the step, from 1."""
        return self.execution.step

    @property
    def loss(self) -> float | None:
        """Mean loss of the step before its update; None for a step left out."""
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
    plan: ReplayPlan,
    run_id: str,
    home: Home,
    checkpoints: CheckpointStore,
    use_gpu: bool,
    shown: Collection[int] = (),
    progress: Progress = ignore_progress,
) -> list[ReplayedStep]:
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
