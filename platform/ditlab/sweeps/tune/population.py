"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846) in step: none goes on before all are there.

Tune's own class compares a trial with what the others had when they last reported, or else stops all processes at every
turn. Here all trials train at once, and those that are early wait with their workers warm, so that equal seeds give
equal populations whatever the machine's load.
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
    """Tune's quantiles and mutations, in step. A trial that takes another one over finds `origin` in its config."""

    def __init__(self, sweep: Sweep, **settings: Any) -> None:
        super().__init__(log_config=False, **settings)
        self._sweep = sweep
        self._held: list[Any] = []
        self._gone: list[Any] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Holds a trial that has come to a turn."""
        state = self._trial_state[trial]
        if self._metric not in result or result["step"] - state.last_perturbation_time < self._perturbation_interval:
            return TrialScheduler.CONTINUE
        self._save_trial_state(state, result["step"], result, trial)
        if math.isnan(state.last_score):
            state.last_score = -math.inf  # Tune leaves it out of the ranks, and it would never be replaced
        if trial not in self._held:  # it may have lost its process while it waited, and come on from its checkpoint
            self._held.append(trial)
        self._turn(tune_controller)
        return TrialScheduler.NOOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        self._without(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_error(tune_controller, trial)
        self._without(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_remove(tune_controller, trial)
        self._without(tune_controller, trial)

    def _without(self, controller: Any, gone: Any) -> None:
        """A trial has ended: the others may have waited for it alone, and its score counts no more."""
        self._trial_state[gone].last_score = None
        self._gone.append(gone)
        self._held = [trial for trial in self._held if trial is not gone]
        self._turn(controller)

    def _is_awaited(self, trial: Any) -> bool:
        return trial not in self._held and trial not in self._gone and not trial.is_finished()

    def _turn(self, controller: Any) -> None:
        """Lets all go on, the worst with another one's weights, once all are here."""
        if not self._held or any(map(self._is_awaited, controller.get_live_trials())):
            return
        held, self._held = sorted(self._held, key=_number), []
        front = max(self._trial_state[trial].last_train_time for trial in held)
        if any(self._trial_state[trial].last_train_time < front for trial in held):
            self._catch_up(controller, held, front)
            return
        lower, upper = self._quantiles()
        for trial in held:
            self._trial_state[trial].last_perturbation_time = self._trial_state[trial].last_train_time
        for trial in held:
            if trial in lower:
                self._take_over(controller, trial, self._keyed(trial).choice(sorted(upper, key=_number)))
            else:
                controller._schedule_trial_train(trial)

    def _catch_up(self, controller: Any, held: list[Any], front: int) -> None:
        """Those that an earlier session, or a lost process, has left behind come as far as the others first."""
        for trial in held:
            state = self._trial_state[trial]
            if state.last_train_time == front:
                self._held.append(trial)
            else:
                state.last_perturbation_time = front - self._perturbation_interval
                controller._schedule_trial_train(trial)

    def _take_over(self, controller: Any, trial: Any, donor: Any) -> None:
        """A new beginning for the trial. Tune keeps one process warm a turn; others start anew."""
        config, _ = self._get_new_config(trial, donor)
        controller.pause_trial(trial, should_checkpoint=False)
        trial.set_config(config)

    def _keyed(self, trial: Any) -> random.Random:
        """Random numbers of this trial at this turn."""
        return random.Random(f"{self._sweep.seed}/{_number(trial)}/{self._trial_state[trial].last_train_time}")

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The donor's values, perturbed, in the trial's own name. Values stay inside their axes; together they make an
        experiment, or else they stay the donor's."""
        # Tune mutates by the global generators, which other threads use too.
        keyed = self._keyed(trial)
        random.seed(keyed.random())
        np.random.seed(keyed.randrange(2**32))
        mutated, operations = super()._get_new_config(trial, trial_to_clone)
        donor, own = trial_to_clone.config["trial"], trial.config["trial"]
        values = {path: fitting(self._sweep.space[path], value) for path, value in mutated["trial"]["values"].items()}
        try:
            experiment_for(self._sweep, values)
        except UserError:
            values = dict(donor["values"])
        step = self._trial_state[trial_to_clone].last_train_time
        origin = {"run_id": donor["run_id"], "step": step, "key": secrets.token_hex(4)}
        config = {"number": own["number"], "run_id": own["run_id"], "values": values, "origin": origin}
        return {"trial": config}, operations


def fitting(axis: Axis, value: Any) -> Any:
    """The value of an axis that is nearest to a perturbed one."""
    if isinstance(axis, Choice | Grid):
        return value
    if isinstance(axis, Integer):
        steps = round((float(value) - axis.low) / axis.step)
        return axis.low + axis.step * min(max(0, steps), (axis.high - axis.low) // axis.step)
    return min(max(float(value), axis.low), axis.high)


def _number(trial: Any) -> int:
    return int(trial.config["trial"]["number"])
