"""Synchronous population-based training (Jaderberg et al. 2017, arXiv:1711.09846).

Tune's own class compares a trial with the others' latest results, or else stops all processes at every perturbation.
Here all trials train at once, and those that reach a perturbation early wait with warm workers, so that equal seeds
give equal populations whatever the machine's load.
"""

import math
import random
import secrets
from typing import Any

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from ditlab.errors import UserError
from ditlab.spec.sweep.axes import Axis, Choice, Grid, Integer
from ditlab.spec.sweep.space import experiment_for
from ditlab.spec.sweep.spec import Sweep


class Population(PopulationBasedTraining):
    """Tune's quantiles and mutations, applied once all trials wait at the same step.

    A trial that shall take over another one's checkpoint gets `takeover` in its config.
    """

    def __init__(self, sweep: Sweep, **settings: Any) -> None:
        super().__init__(log_config=False, **settings)
        self._sweep = sweep
        self._waiting: list[Any] = []
        self._ended: list[Any] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Let a trial wait that has reached a perturbation."""
        state = self._trial_state[trial]
        if self._metric not in result or result["step"] - state.last_perturbation_time < self._perturbation_interval:
            return TrialScheduler.CONTINUE
        self._save_trial_state(state, result["step"], result, trial)
        if math.isnan(state.last_score):
            state.last_score = -math.inf  # Tune would leave it out of the ranking, and never replace it
        if trial not in self._waiting:  # its process may have been lost while it waited, and restarted
            self._waiting.append(trial)
        self._perturb_when_complete(tune_controller)
        return TrialScheduler.NOOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        self._remove(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)
        self._remove(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_remove(tune_controller, trial)
        self._remove(tune_controller, trial)

    def _remove(self, controller: Any, ended: Any) -> None:
        """Remove an ended trial, for which alone the others may have waited, and its score."""
        self._trial_state[ended].last_score = None
        self._ended.append(ended)
        self._waiting = [trial for trial in self._waiting if trial is not ended]
        self._perturb_when_complete(controller)

    def _is_awaited(self, trial: Any) -> bool:
        """Return True if the trial still trains towards the perturbation."""
        return trial not in self._waiting and trial not in self._ended and not trial.is_finished()

    def _perturb_when_complete(self, controller: Any) -> None:
        """Let all trials continue, the worst with another one's weights, once all of them wait."""
        if not self._waiting or any(map(self._is_awaited, controller.get_live_trials())):
            return
        waiting, self._waiting = sorted(self._waiting, key=_number), []
        front = max(self._trial_state[trial].last_train_time for trial in waiting)
        if any(self._trial_state[trial].last_train_time < front for trial in waiting):
            self._catch_up(controller, waiting, front)
            return
        lower, upper = self._quantiles()
        for trial in waiting:
            self._trial_state[trial].last_perturbation_time = self._trial_state[trial].last_train_time
        for trial in waiting:
            if trial in lower:
                self._take_over(controller, trial, self._random(trial).choice(sorted(upper, key=_number)))
            else:
                controller._schedule_trial_train(trial)

    def _catch_up(self, controller: Any, waiting: list[Any], front: int) -> None:
        """Train the trials that are behind, after a resume or a lost process, up to the others' step first."""
        for trial in waiting:
            state = self._trial_state[trial]
            if state.last_train_time == front:
                self._waiting.append(trial)
            else:
                state.last_perturbation_time = front - self._perturbation_interval
                controller._schedule_trial_train(trial)

    def _take_over(self, controller: Any, trial: Any, donor: Any) -> None:
        """Restart the trial from the donor's checkpoint. Tune reuses one process a perturbation; others start anew."""
        config, _ = self._get_new_config(trial, donor)
        controller.pause_trial(trial, should_checkpoint=False)
        trial.set_config(config)

    def _random(self, trial: Any) -> random.Random:
        """Random numbers keyed by seed, trial and step."""
        return random.Random(f"{self._sweep.seed}/{_number(trial)}/{self._trial_state[trial].last_train_time}")

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Configure the trial with the donor's values, perturbed within their axes.

        Values that make no valid experiment together stay the donor's.
        """
        # Tune mutates by the global generators, which other threads use too.
        generator = self._random(trial)
        random.seed(generator.random())
        np.random.seed(generator.randrange(2**32))
        mutated, operations = super()._get_new_config(trial, trial_to_clone)
        donor, own = trial_to_clone.config["trial"], trial.config["trial"]
        values = {
            path: nearest_value(self._sweep.space[path], value) for path, value in mutated["trial"]["values"].items()
        }
        try:
            experiment_for(self._sweep, values)
        except UserError:
            values = dict(donor["values"])
        step = self._trial_state[trial_to_clone].last_train_time
        takeover = {"run_id": donor["run_id"], "step": step, "key": secrets.token_hex(4)}
        config = {"number": own["number"], "run_id": own["run_id"], "values": values, "takeover": takeover}
        return {"trial": config}, operations


def nearest_value(axis: Axis, value: Any) -> Any:
    """Return the value of an axis that is nearest to a perturbed one."""
    if isinstance(axis, Choice | Grid):
        return value
    if isinstance(axis, Integer):
        steps = round((float(value) - axis.low) / axis.step)
        return axis.low + axis.step * min(max(0, steps), (axis.high - axis.low) // axis.step)
    return min(max(float(value), axis.low), axis.high)


def _number(trial: Any) -> int:
    return int(trial.config["trial"]["number"])
