"""Tune's schedulers for a sweep, fed with the metrics of earlier sessions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from ditlab.spec.sweep.axes import Axis, Choice, Grid, Integer, LogUniform
from ditlab.spec.sweep.spec import Asha, Median, Pbt, Sweep
from ditlab.sweeps.trials import PastCurve
from ditlab.sweeps.tune.population import Population


def make_scheduler(
    sweep: Sweep, total_steps: int, past: Sequence[PastCurve], stop_trial: Callable[[int], None]
) -> TrialScheduler:
    """Make the sweep's scheduler, whose time is a trial's training step.

    ASHA: Li et al. 2020, arXiv:1810.05934. Median stopping: Golovin et al. 2017. Population-based training: Jaderberg
    et al. 2017, arXiv:1711.09846.

    Args:
        sweep: the sweep's spec.
        total_steps: steps of the longest trial.
        past: metrics of trials that ended in earlier sessions, which the scheduler receives again.
        stop_trial: requests that the trial with a number stops after a checkpoint.
    """
    np.random.seed(sweep.seed % 2**32)  # ASHA draws a trial's bracket from the global generator
    ranked: dict[str, Any] = {"time_attr": "step", "metric": sweep.metrics[0], "mode": sweep.modes[0]}
    match sweep.scheduler:
        case Asha() as asha:
            scheduler: _Asha | _Median = _Asha(
                max_t=total_steps,
                grace_period=asha.grace,
                reduction_factor=asha.reduction,
                brackets=asha.brackets,
                **ranked,
            )
        case Median() as median:
            scheduler = _Median(
                grace_period=median.grace, min_samples_required=median.min_trials, hard_stop=True, **ranked
            )
        case Pbt() as pbt:
            return Population(
                sweep,
                perturbation_interval=pbt.interval,
                quantile_fraction=pbt.quantile,
                resample_probability=pbt.resample,
                hyperparam_mutations={
                    "trial": {"values": {path: _mutation(axis) for path, axis in sweep.space.items()}}
                },
                **ranked,
            )
        case _:
            return FIFOScheduler()
    for curve in past:
        _replay(scheduler, curve, ranked["metric"])
    scheduler.stop_trial = stop_trial
    return scheduler


def _replay(scheduler: TrialScheduler, curve: PastCurve, metric: str) -> None:
    """Report the metrics of an ended trial to a scheduler, as if they had just been measured."""
    trial: Any = _EndedTrial(curve.trial_id)
    controller: Any = None
    scheduler.on_trial_add(controller, trial)
    result: dict[str, Any] = {}
    for step, value in zip(curve.steps, curve.values, strict=True):
        result = {"step": step, metric: value, "time_total_s": 0.0}
        if isinstance(scheduler, _Median):  # it only needs to remember them: this trial has ended
            scheduler.on_trial_complete(controller, trial, result)
        else:
            scheduler.on_trial_result(controller, trial, result)
    if not isinstance(scheduler, _Median):
        scheduler.on_trial_complete(controller, trial, result)


class _StopsAfterCheckpoint:
    """Mixin that requests a trial to stop after a checkpoint: Tune itself would kill it ten seconds later."""

    stop_trial: Callable[[int], None] | None = None
    _stopped: tuple[str, ...] = ()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if trial.trial_id not in self._stopped:
            decision: str = super().on_trial_result(tune_controller, trial, result)  # type: ignore[misc]
            if decision != TrialScheduler.STOP or self.stop_trial is None:
                return decision
            self._stopped = (*self._stopped, trial.trial_id)
        assert self.stop_trial
        self.stop_trial(int(trial.config["trial"]["number"]))
        return TrialScheduler.CONTINUE


class _Asha(_StopsAfterCheckpoint, AsyncHyperBandScheduler):
    """Tune's ASHA."""


class _Median(_StopsAfterCheckpoint, MedianStoppingRule):
    """Tune's median stopping, which assumes that a trial's last result has the metric; a failed trial's has not."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if self._metric in result:
            super().on_trial_complete(tune_controller, trial, result)


@dataclass(frozen=True)
class _EndedTrial:
    """The part of Tune's trial that schedulers read of an ended one."""

    trial_id: str


def _mutation(axis: Axis) -> Any:
    """Mutation of an axis in Tune's terms: a range is scaled by a factor or resampled, a list moves to a neighbour."""
    if isinstance(axis, Choice | Grid):
        return list(axis.values)
    if isinstance(axis, Integer):
        return tune.randint(axis.low, axis.high + 1)
    return tune.loguniform(axis.low, axis.high) if isinstance(axis, LogUniform) else tune.uniform(axis.low, axis.high)
