"""Tune's schedulers, as a sweep's spec asks for them, with what an earlier session of the sweep taught them."""

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
    sweep: Sweep, total_steps: int, past: Sequence[PastCurve], stop: Callable[[int], None]
) -> TrialScheduler:
    """The scheduler; time is a trial's training step. `past` is shown to it as if it had just happened. `stop` tells a
    trial, by its number, that it shall end.

    ASHA: Li et al. 2020, arXiv:1810.05934. Median stopping: Golovin et al. 2017. Population-based training: Jaderberg
    et al. 2017, arXiv:1711.09846.
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
        _show(scheduler, curve, ranked["metric"])
    scheduler.stop = stop
    return scheduler


def _show(scheduler: TrialScheduler, curve: PastCurve, metric: str) -> None:
    """Lets a scheduler see a trial of an earlier session."""
    trial: Any = _Stand(curve.trial_id)
    controller: Any = None
    scheduler.on_trial_add(controller, trial)
    result: dict[str, Any] = {}
    for step, value in zip(curve.steps, curve.values, strict=True):
        result = {"step": step, metric: value, "time_total_s": 0.0}
        if isinstance(scheduler, _Median):  # it shall remember, and decide nothing: this trial has ended
            scheduler.on_trial_complete(controller, trial, result)
        else:
            scheduler.on_trial_result(controller, trial, result)
    if not isinstance(scheduler, _Median):
        scheduler.on_trial_complete(controller, trial, result)


class _Patient:
    """Lets a trial that is to stop do so by itself, after a checkpoint: Tune would kill it ten seconds later."""

    stop: Callable[[int], None] | None = None
    _stopped: tuple[str, ...] = ()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if trial.trial_id not in self._stopped:
            decision: str = super().on_trial_result(tune_controller, trial, result)  # type: ignore[misc]
            if decision != TrialScheduler.STOP or self.stop is None:
                return decision
            self._stopped = (*self._stopped, trial.trial_id)
        assert self.stop
        self.stop(int(trial.config["trial"]["number"]))
        return TrialScheduler.CONTINUE


class _Asha(_Patient, AsyncHyperBandScheduler):
    """Tune's."""


class _Median(_Patient, MedianStoppingRule):
    """Tune's, which takes for granted that a trial's last word has the metric: that of a failed one has not."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if self._metric in result:
            super().on_trial_complete(tune_controller, trial, result)


@dataclass(frozen=True)
class _Stand:
    """As much of Tune's trial as schedulers ask a past one for."""

    trial_id: str


def _mutation(axis: Axis) -> Any:
    """Tune perturbs a number by a factor, or draws anew; it moves to a neighbour in a list, or draws anew."""
    if isinstance(axis, Choice | Grid):
        return list(axis.values)
    if isinstance(axis, Integer):
        return tune.randint(axis.low, axis.high + 1)
    return tune.loguniform(axis.low, axis.high) if isinstance(axis, LogUniform) else tune.uniform(axis.low, axis.high)
