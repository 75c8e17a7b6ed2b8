"""Tune's schedulers, as a sweep's spec asks for them, with what an earlier session of the sweep taught them."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from ditlab.cluster.sweep.trials import PastCurve
from ditlab.errors import UserError
from ditlab.spec.axes import Axis, Choice, Grid, Integer, LogUniform
from ditlab.spec.space import experiment_for
from ditlab.spec.sweep import Asha, Median, Pbt, Sweep


def make_scheduler(sweep: Sweep, total_steps: int, past: Sequence[PastCurve]) -> TrialScheduler:
    """The scheduler; time is a trial's training step. `past` is shown to it as if it had just happened.

    ASHA: Li et al. 2020, arXiv:1810.05934. Median stopping: Golovin et al. 2017. Population-based training: Jaderberg
    et al. 2017, arXiv:1711.09846.
    """
    # Tune's schedulers draw from the global generators.
    random.seed(sweep.seed)
    np.random.seed(sweep.seed % 2**32)
    ranked: dict[str, Any] = {"time_attr": "step", "metric": sweep.metrics[0], "mode": sweep.modes[0]}
    match sweep.scheduler:
        case Asha() as asha:
            scheduler: TrialScheduler = AsyncHyperBandScheduler(
                max_t=total_steps,
                grace_period=asha.grace,
                reduction_factor=asha.reduction,
                brackets=asha.brackets,
                **ranked,
            )
        case Median() as median:
            scheduler = MedianStoppingRule(
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
                log_config=False,
                **ranked,
            )
        case _:
            return FIFOScheduler()
    for curve in past:
        _show(scheduler, curve, ranked["metric"])
    return scheduler


def _show(scheduler: TrialScheduler, curve: PastCurve, metric: str) -> None:
    """Lets a scheduler see a trial of an earlier session."""
    trial: Any = _Stand(curve.trial_id)
    controller: Any = None
    scheduler.on_trial_add(controller, trial)
    result: dict[str, Any] = {}
    for step, value in zip(curve.steps, curve.values, strict=True):
        result = {"step": step, metric: value, "time_total_s": 0.0}
        scheduler.on_trial_result(controller, trial, result)
    scheduler.on_trial_complete(controller, trial, result)


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


class Population(PopulationBasedTraining):
    """Population-based training of experiments."""

    def __init__(self, sweep: Sweep, **settings: Any) -> None:
        super().__init__(**settings)
        self._sweep = sweep

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The donor's values, perturbed, in the trial's own name. Values stay inside their axes; together they make an
        experiment, or else they stay the donor's."""
        mutated, operations = super()._get_new_config(trial, trial_to_clone)
        donor = trial_to_clone.config["trial"]["values"]
        values = {path: fitting(self._sweep.space[path], value) for path, value in mutated["trial"]["values"].items()}
        try:
            experiment_for(self._sweep, values)
        except UserError:
            values = dict(donor)
        own = trial.config["trial"]
        return {"trial": {"number": own["number"], "run_id": own["run_id"], "values": values}}, operations


def fitting(axis: Axis, value: Any) -> Any:
    """The value of an axis that is nearest to a perturbed one."""
    if isinstance(axis, Choice | Grid):
        return value
    if isinstance(axis, Integer):
        steps = round((float(value) - axis.low) / axis.step)
        return axis.low + axis.step * min(max(0, steps), (axis.high - axis.low) // axis.step)
    return min(max(float(value), axis.low), axis.high) if math.isfinite(value) else axis.low
