"""What a run will do, worked out from spec and data before anything starts."""

from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.order import SampleOrder
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimisation import SteppedCosineRestartSchedule


@dataclass(frozen=True)
class RunPlan:
    """Steps and epochs of a run on its data."""

    total_steps: int
    epoch_steps: int
    """Steps of an epoch, its last partial batch left out."""
    train_samples: int
    held_out_samples: int
    left_out_samples: int
    """Of each epoch: less than a batch of each image size. Which ones changes from epoch to epoch."""
    note: str = ""
    """What a person should know about this plan, or nothing."""


def plan_run(experiment: Experiment, data: DataSplits) -> RunPlan:
    """Raises UserError where the data holds less than one batch."""
    order = SampleOrder.of(data.train, experiment.batch.size, experiment.seed)
    epoch_steps = order.batches_per_epoch
    training = experiment.training
    total = training.steps or (training.epochs or 0) * epoch_steps
    schedule = experiment.schedule
    if not isinstance(schedule, SteppedCosineRestartSchedule):
        length = schedule.warmup_steps(epoch_steps)
        if length and length >= total:
            given = f"warmup_epochs={schedule.warmup_epochs:g}" if schedule.warmup_epochs else f"warmup={length}"
            most = f"warmup_epochs below {total / epoch_steps:g}" if schedule.warmup_epochs else f"warmup below {total}"
            raise UserError(f"schedule.{given} leaves nothing of the run's {total} steps; set schedule.{most}.")
    note = _never_trained(data.train, experiment.batch.size)
    return RunPlan(total, epoch_steps, len(data.train), len(data.held_out), order.left_out, note)


def _never_trained(view: View, batch_size: int) -> str:
    """The buckets that fill no batch."""
    counts = np.bincount(view.buckets).tolist()
    few = {number: count for number, count in enumerate(counts) if 0 < count < batch_size}
    if not few:
        return ""
    names = [f"{view.store.parts[number].name} ({count})" for number, count in few.items()]
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return (
        f"{view.origin}: image sizes with fewer training samples than batch.size={batch_size} are never trained on: "
        f"{listed}; lower batch.size, or import the images again with fewer sizes."
    )
