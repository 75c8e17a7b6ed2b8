"""Plan of a training run, computed from spec and data before anything starts: steps, learning
rates, shares of workers.

A global batch's micro-batches are distributed over any number of workers, cut where memory asks for
it.
"""

import math
from dataclasses import dataclass, field

from ditlab.checkpoints.start_point import StartPoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.orders import training_order
from ditlab.data.splits import DataSplits, Mixture
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import Schedule
from ditlab.training.inbox import Inbox
from ditlab.training.recovery import MemoryPlan
from ditlab.weights.initial import InitialWeights


@dataclass(frozen=True)
class RunPlan:
    """Steps and epochs of a run on its data."""

    total_steps: int
    epoch_steps: int
    """Steps of an epoch, without its last partial batch; 0 for a mixture, each of whose parts has
    epochs of its own.
    """
    train_samples: int
    held_out_samples: int
    left_out_samples: int
    """Samples of each epoch that fill no batch of their image size; others in every epoch."""
    note: str = ""
    """A sentence for people about samples that are never trained on; empty for none."""
    mixture: str = ""
    """A line for people about the parts of a mixture: their shares, samples and passes; empty for
    other data.
    """


@dataclass(frozen=True)
class TrainingRun:
    """Everything that a worker trains from: the experiment, its data and plan, and places on
    disk.
    """

    experiment: Experiment
    data: DataSplits
    plan: RunPlan
    checkpoints: CheckpointStore
    home: Home
    """Home of the classifiers of quality figures and of downloaded encoders."""
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Memory measures that an earlier attempt arrived at."""
    start: StartPoint | None = None
    """Checkpoint of another run to begin from while there is none of this one; None for fresh
    weights.
    """
    weights: InitialWeights | None = None
    """Published weights to begin from while there is no checkpoint; None for fresh ones."""
    inbox: Inbox | None = None
    """Inbox of the evaluator that another process is; None: the workers evaluate."""
    waits_for_values: bool = False
    """True if training blocks until the value of each evaluation is there, as a sweep's scheduler
    needs it.
    """


def plan_run(experiment: Experiment, data: DataSplits) -> RunPlan:
    """Compute the steps and epochs of a run on its data.

    Raises UserError where the data hold less than one batch, or the cache of a streamed store less
    than a worker's windows, and where the warm-up is as long as the run or its decay has no place
    in it.
    """
    order = training_order(experiment.data, data, experiment.batch.size, experiment.seed)
    order.check_room(experiment.data, data.train.store, experiment.resources.max_workers)
    mixed = data.mixture
    epoch_steps = 0 if mixed else order.batches_per_epoch
    training = experiment.training
    total = training.steps or (training.epochs or 0) * epoch_steps
    try:
        experiment.schedule.check_length(total, epoch_steps)
    except ValueError as error:
        raise UserError(str(error)) from None
    views = [data.train]
    mixture = ""
    if mixed:
        views = [part.train for part in mixed.parts.values()]
        if mixed.draw == "sample":
            views = []  # no sample waits for a batch of its shape
        mixture = _describe_mixture(mixed, total * experiment.batch.size)
    note = " ".join(filter(None, (_never_trained(view, experiment.batch.size) for view in views)))
    return RunPlan(
        total, epoch_steps, len(data.train), len(data.held_out), order.left_out, note, mixture
    )


def _describe_mixture(mixed: Mixture, drawn: int) -> str:
    """Return a line on the parts of a mixture of which a run draws so many samples."""
    parts = []
    for name, share in mixed.shares.items():
        num = len(mixed.parts[name].train)
        parts.append(
            f"{name} {share:.4g} of {num:,} samples ({share * drawn / max(1, num):.3g} passes)"
        )
    return f"mixture drawn by {mixed.draw}: {', '.join(parts)}; no epoch of the whole"


def _never_trained(view: View, batch_size: int) -> str:
    """Return a sentence on the image sizes whose samples fill no batch; empty where there are
    none.
    """
    counts = view.bucket_counts.tolist()
    few = {number: count for number, count in enumerate(counts) if 0 < count < batch_size}
    if not few:
        return ""
    names = [f"{view.store.parts[number].name} ({count})" for number, count in few.items()]
    listed = ", ".join(names[:6])
    if len(names) > 6:
        listed += f" and {len(names) - 6} more"
    return (
        f"{view.origin}: image sizes with fewer training samples than batch.size={batch_size} "
        f"are never trained on: {listed}; lower batch.size, or import the images again with "
        "fewer sizes."
    )


def learning_rate(
    schedule: Schedule, base: float, step: int, total: int, epoch_steps: int
) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total`; an epoch has
    `epoch_steps` steps.
    """
    return base * schedule.factor(step, total, epoch_steps)


def planned_rate(experiment: Experiment, plan: RunPlan, step: int) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of an experiment's plan."""
    return learning_rate(
        experiment.schedule, experiment.optimizer.lr, step, plan.total_steps, plan.epoch_steps
    )


def rate_change(before: Experiment, now: Experiment, data: DataSplits, step: int) -> str:
    """Return a sentence on both learning rates around the resume of a run after `step` steps with
    another spec.

    Empty where the next step's rate is what the spec of before gives, and before the first step.
    Raises UserError for a spec that has no plan on these data.
    """

    def rate(experiment: Experiment, number: int) -> float:
        return planned_rate(experiment, plan_run(experiment, data), number)

    due = rate(before, step)
    new = rate(now, step)
    if not step or math.isclose(due, new, rel_tol=1e-9):
        return ""
    return (
        f"learning rate {rate(before, step - 1):.4g} at step {step:,} and {new:.4g} at step "
        f"{step + 1:,}, where the schedule of before gives {due:.4g}"
    )


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of a worker: rows `start` to `stop` of its `number`-th micro-batch."""

    number: int
    start: int
    stop: int
    counts: bool
    """True for a pass of this worker's own; a filler keeps step with workers that have one
    micro-batch more.
    """


@dataclass(frozen=True)
class WorkerShare:
    """Micro-batches and forward passes of one worker in every step."""

    micro_indices: range
    """Its micro-batches by global index: contiguous, no two workers' counts more than one apart."""
    passes: tuple[ForwardPass, ...]
    """Its forward passes, as many on every worker."""
    pass_size: int
    """Samples of a forward pass."""
    total_passes: int
    """Forward passes that count, over all workers: each holds 1 / total_passes of the mean."""
    weight: float
    """Factor on the loss of a pass that counts, so that a mean over passes and workers is the mean
    over samples.
    """


def worker_share(
    num: int, size: int, rank: int, world_size: int, microbatch_splits: int
) -> WorkerShare:
    """Return a worker's share of `num` micro-batches of `size` samples, each cut in two
    `microbatch_splits` times.

    Every worker needs at least one micro-batch.
    """
    assert num >= world_size, f"{num} micro-batches leave some of {world_size} workers without one"
    parts = 2**microbatch_splits
    assert size % parts == 0, f"{size} samples cannot be halved {microbatch_splits} times"
    mine = range(rank * num // world_size, (rank + 1) * num // world_size)
    slots = -(-num // world_size)
    cut = size // parts
    passes = tuple(
        ForwardPass(min(number, len(mine) - 1), part * cut, (part + 1) * cut, number < len(mine))
        for number in range(slots)
        for part in range(parts)
    )
    return WorkerShare(mine, passes, cut, num * parts, slots * world_size / num)
