"""A sweep's trials: planned, past, and what each trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.reports.sweeps.ranking import ENDED
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep.space import experiment_for
from ditlab.spec.sweep.sweep import Pbt, Sweep


@dataclass(frozen=True)
class PlannedTrial:
    """One line of the ledger."""

    number: int
    run_id: str
    """Of the run that it is, whether that has begun or not."""
    values: dict[str, Any]
    """By axis; under population-based training, the first ones."""


@dataclass(frozen=True)
class PastTrial:
    """What an earlier session of the sweep left of a trial."""

    trial: PlannedTrial
    status: str
    """finished | stopped | failed, or another word where it has not ended."""
    step: int
    values: tuple[float, ...]
    """Of the sweep's metrics, the last ones; empty where one is missing."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True)
class PastCurve:
    """The metric of a trial that has ended, by step."""

    trial_id: str
    steps: Sequence[int]
    values: Sequence[float]


def trial_experiment(sweep: Sweep, trial: PlannedTrial) -> Experiment:
    """What a trial trains. Raises UserError for values that make no experiment."""
    experiment = experiment_for(sweep, trial.values, f"{sweep.name}-{trial.number:03d}")
    if isinstance(sweep.scheduler, Pbt):
        # What is handed over is a checkpoint of the evaluation that it was chosen by.
        kept = max(experiment.checkpoint.keep, 3)  # nobody prunes what another trial is about to copy
        saving = {"every": experiment.evaluation.every, "keep": kept}
        experiment = experiment.model_copy(update={"checkpoint": experiment.checkpoint.model_copy(update=saving)})
    return experiment
