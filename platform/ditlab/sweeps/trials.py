"""Trials of a sweep: planned ones, those of earlier sessions, and the experiments that they train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditlab.reports.sweeps.records import ENDED
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep.space import experiment_for
from ditlab.spec.sweep.spec import Pbt, Sweep


@dataclass(frozen=True)
class PlannedTrial:
    """One line of the sweep's ledger."""

    number: int
    run_id: str
    """Id of the trial's run, which may not exist yet."""
    values: dict[str, Any]
    """Value by axis path; the initial ones in population-based training."""


@dataclass(frozen=True)
class PastTrial:
    """State in which an earlier session left a trial."""

    trial: PlannedTrial
    status: str
    """finished | stopped | failed, or another status where the trial has not ended."""
    step: int
    values: tuple[float, ...]
    """Last values of the sweep's metrics; empty where one is missing."""

    @property
    def has_ended(self) -> bool:
        """True if the trial is not run again."""
        return self.status in ENDED


@dataclass(frozen=True)
class PastCurve:
    """Metric of an ended trial by step."""

    trial_id: str
    steps: Sequence[int]
    values: Sequence[float]


def trial_experiment(sweep: Sweep, trial: PlannedTrial) -> Experiment:
    """Validate the experiment of a trial. Raises UserError for values that make no valid experiment."""
    experiment = experiment_for(sweep, trial.values, f"{sweep.name}-{trial.number:03d}")
    if isinstance(sweep.scheduler, Pbt):
        # Another trial takes over the checkpoint of the evaluation by which this one was chosen.
        kept = max(experiment.checkpoint.keep, 3)  # so that it is not pruned while another trial copies it
        checkpointing = {"every": experiment.evaluation.every, "keep": kept}
        checkpoint = experiment.checkpoint.model_copy(update=checkpointing)
        experiment = experiment.model_copy(update={"checkpoint": checkpoint})
    return experiment
