"""Tune's searches and schedulers for a sweep, fed with the metrics of earlier sessions.

Search is Optuna's (Akiba et al. 2019, arXiv:1907.10902). ASHA: Li et al. 2020, arXiv:1810.05934;
median stopping: Golovin et al. 2017; population-based training, here synchronous: Jaderberg et al.
2017, arXiv:1711.09846.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Self

import numpy as np
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import Searcher

from ditlab.cluster.ray_internals import schedule_training
from ditlab.errors import UserError
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.spec.sweep import Asha, Median, OptunaSearch, Pbt, Scheduler, Sweep, TrialCurve
from ditlab.spec.sweep_axes import Axis, Choice, Grid, Integer, LogUniform, same
from ditlab.spec.sweep_space import draw_values, experiment_for
from ditlab.sweeps.chooser import ChosenTrial, Round, TrialChooser
from ditlab.sweeps.folder import free_numbers

MAX_PROPOSALS = 100  # in a row that make no valid experiment


class NeverCopied:
    """Part of Tune's settings that Tune uses itself, in place of a copy or of what a file of it
    gives.
    """

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[], bool], tuple[()]]:
        return (bool, ())  # Tune keeps its settings in a file, from which nothing is restored here


class LedgerSearcher(NeverCopied, Searcher):
    """Base of the searchers whose state is in the ledger and the runs' journals."""

    def __init__(self) -> None:
        super().__init__(metric=None, mode=None)
        self._running: dict[str, Any] = {}
        """Trials that train now, by the id of Tune's trial."""

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        trained = self._running.pop(trial_id, None)
        if trained is not None:
            last = result or {}
            status = str(last.get("status", "failed"))
            self._complete(trained, "failed" if error else status, last)

    def _complete(self, trained: Any, status: str, last: dict[str, Any]) -> None:
        """Take in how a trial has ended, and what Tune was told `last` of it."""
        raise NotImplementedError


class OptunaTrials(LedgerSearcher):
    """Tune's searcher on an Optuna study, which is refilled from the ledger when a sweep is
    resumed.

    Ray's own OptunaSearch cannot be refilled: it takes no evaluated points of a space with
    conditions.
    """

    def __init__(self, sweep: Sweep, past: Sequence[Trial], plan: Callable[..., Trial]) -> None:
        """`plan` writes a new trial, by number, values, configuration and seed, to the ledger."""
        super().__init__()
        self._sweep = sweep
        self._plan = plan
        self._study = make_study(sweep, past)
        self._configurations = _by_configuration(past)
        """Trials of each configuration that have ended or are known."""
        self._waiting = [trial for trial in past if not trial.has_ended]
        self._numbers = free_numbers(past)
        self._free_configurations = [
            configuration
            for configuration in range(sweep.trials or 0)
            if configuration not in self._configurations
        ]
        self._proposals: dict[int, Any] = {trial.configuration: None for trial in self._waiting}
        """Optuna's trial by configuration; None for one of an earlier session that Optuna has not
        been asked for again.
        """

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Configure the next trial: first unfinished ones of an earlier session, then Optuna's
        proposals, each under all seeds."""
        if not self._waiting and not self._propose():
            return Searcher.FINISHED
        trial = self._running[trial_id] = self._waiting.pop(0)
        if self._proposals[trial.configuration] is None:
            self._proposals[trial.configuration] = _ask_again(
                self._study, self._sweep, trial.values
            )
        return {"trial": trial.to_dict()}

    def _propose(self) -> bool:
        """Ask Optuna for a configuration and plan its trials; False where there is none left, or
        none that is valid.
        """
        from optuna.trial import TrialState

        if not self._free_configurations:
            return False
        for _ in range(MAX_PROPOSALS):
            proposal = self._study.ask()
            values = suggest_values(self._sweep, proposal)
            try:
                experiment_for(self._sweep, values)
            except UserError:  # counts as pruned: Optuna would propose failed ones again
                self._study.tell(proposal, state=TrialState.PRUNED)
                continue
            configuration = self._free_configurations.pop(0)
            self._waiting = [
                self._plan(next(self._numbers), values, configuration, seed)
                for seed in self._sweep.seed_list
            ]
            self._configurations[configuration] = list(self._waiting)
            self._proposals[configuration] = proposal
            return True
        return False

    def _complete(self, trained: Trial, status: str, last: dict[str, Any]) -> None:
        metrics = {name: float(last[name]) for name in self._sweep.metrics if name in last}
        ended = replace(trained, status=status, step=int(last.get("step", 0)), metrics=metrics)
        before = self._configurations[trained.configuration]
        configuration = [ended if each.number == ended.number else each for each in before]
        self._configurations[trained.configuration] = configuration
        if all(each.has_ended for each in configuration):  # others are resumed in the next session
            _report(
                self._study, self._proposals.pop(trained.configuration), self._sweep, configuration
            )


class ChosenTrials(LedgerSearcher):
    """Tune's searcher of a `TrialChooser`: each of Tune's trials trains a run up to the step that a
    round gives it.
    """

    def __init__(
        self,
        sweep: Sweep,
        chooser: TrialChooser,
        past: Sequence[Trial],
        plan: Callable[[int, Mapping[str, Any], int, int | None], Trial],
        on_round: Callable[[Round], None],
    ) -> None:
        """`past` has all trials of the ledger with their curves. `plan` writes a new trial, by
        number, values, configuration and seed, to the ledger; `on_round` is told every round, the
        first and the last too.
        """
        super().__init__()
        self._metric_name = sweep.metrics[0]
        self._chooser = chooser
        self._plan = plan
        self._on_round = on_round
        self._trials = {(trial.configuration, trial.seed): trial for trial in past}
        self._values = {trial.configuration: trial.values for trial in past}
        self._numbers = free_numbers(past)
        self._waiting: list[ChosenTrial] = []
        self._is_interrupted = False
        self._begin_round()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Configure the next trial; None while those of a round still train, `FINISHED` at the
        end.
        """
        if not self._waiting:
            return None if self._running else Searcher.FINISHED
        chosen = self._waiting.pop(0)
        self._running[trial_id] = chosen
        place = chosen.configuration, chosen.seed
        if place not in self._trials:
            self._trials[place] = self._plan(
                next(self._numbers),
                self._values[chosen.configuration],
                chosen.configuration,
                chosen.seed,
            )
        config = self._trials[place].to_dict()
        if chosen.until is not None:
            config["until"] = chosen.until
        return {"trial": config}

    def _complete(self, trained: ChosenTrial, status: str, last: dict[str, Any]) -> None:
        if status == "interrupted":  # it is resumed in the next session, and its round with it
            self._is_interrupted = True
            self._waiting = []
        else:
            place = trained.configuration, trained.seed
            self._trials[place] = self._ended(self._trials[place], trained, status, last)
        if not self._running and not self._waiting and not self._is_interrupted:
            self._begin_round()

    def _ended(
        self, trial: Trial, chosen: ChosenTrial, status: str, last: Mapping[str, Any]
    ) -> Trial:
        """Return a trial with what Tune was told last of it."""
        if status == "failed":
            return replace(trial, status=status)
        step = int(last.get("step", 0))
        if chosen.until is not None:
            step = min(step, chosen.until)
        name = self._metric_name
        curve = trial.curves.get(name, MetricCurve([], []))
        value = float(last.get(name, math.nan))
        longer = MetricCurve([*curve.steps, step], [*curve.values, value])
        if status == "paused":
            status = "interrupted"  # as its record says
        return replace(trial, status=status, step=step, curves={**trial.curves, name: longer})

    def _begin_round(self) -> None:
        found = self._chooser.next_round(list(self._trials.values()))
        self._waiting = list(found.trials)
        self._on_round(found)


def make_study(sweep: Sweep, past: Sequence[Trial]) -> Any:
    """Make a study that holds every trial that has ended."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = sweep.search
    assert isinstance(search, OptunaSearch)
    # Another seed than that of the earlier sessions, whose trials would be proposed again.
    seed = (sweep.seed + 1_000_003 * len(past)) % 2**32
    sampler = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=search.startup, constant_liar=True
    )
    directions: Any = ["minimize" if mode == "min" else "maximize" for mode in sweep.modes]
    study = optuna.create_study(sampler=sampler, directions=directions)
    for configuration in _by_configuration(past).values():
        if all(trial.has_ended for trial in configuration):
            _report(study, _ask_again(study, sweep, configuration[0].values), sweep, configuration)
    return study


def _by_configuration(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    configurations: dict[int, list[Trial]] = {}
    for trial in trials:
        configurations.setdefault(trial.configuration, []).append(trial)
    return configurations


def _ask_again(study: Any, sweep: Sweep, values: Mapping[str, Any]) -> Any:
    """Let Optuna propose a trial's values."""
    parameters = dict(values)
    for path, axis in sweep.space.items():
        if path in values and isinstance(axis, Choice | Grid):
            parameters[path] = index_of(axis, values[path])
    study.enqueue_trial(parameters)
    proposal = study.ask()
    suggest_values(sweep, proposal)
    return proposal


def suggest_values(sweep: Sweep, proposal: Any) -> dict[str, Any]:
    """Let an Optuna trial suggest a value for each axis. Choices are suggested by index, as they
    may be mappings.
    """

    def draw(path: str, axis: Axis) -> Any:
        if isinstance(axis, Choice | Grid):
            return axis.values[proposal.suggest_categorical(path, list(range(len(axis.values))))]
        if isinstance(axis, Integer):
            return proposal.suggest_int(path, axis.low, axis.high, step=axis.step)
        return proposal.suggest_float(path, axis.low, axis.high, log=isinstance(axis, LogUniform))

    return draw_values(sweep.space, draw)


def index_of(axis: Choice | Grid, value: Any) -> int:
    """Return the index of a value among an axis' values."""
    return next(index for index, known in enumerate(axis.values) if same(known, value))


def _report(study: Any, proposal: Any, sweep: Sweep, configuration: Sequence[Trial]) -> None:
    """Report a configuration's end to Optuna by its means over seeds. One that a scheduler stopped
    counts as pruned at its step, if there is one metric; one of which a seed failed has failed."""
    from optuna.trial import TrialState

    values = [
        fmean(trial.metrics.get(name, math.nan) for trial in configuration)
        for name in sweep.metrics
    ]
    statuses = {trial.status for trial in configuration}
    if "failed" in statuses or not all(math.isfinite(value) for value in values):
        study.tell(proposal, state=TrialState.FAIL)
    elif "stopped" in statuses and len(values) == 1:
        proposal.report(values[0], min(trial.step for trial in configuration))
        study.tell(proposal, state=TrialState.PRUNED)
    else:
        study.tell(proposal, values)


def make_scheduler(
    sweep: Sweep,
    total_steps: int,
    past: Mapping[str, MetricCurve],
    stop_trial: Callable[[int], None],
) -> TrialScheduler:
    """Make the sweep's scheduler, whose time is a trial's training step.

    `total_steps` are those of the longest trial; `past` has the curves, by run id, of trials that
    ended in earlier sessions, which the scheduler receives again; `stop_trial` makes the trial with
    a number stop after a checkpoint.
    """
    ranked: dict[str, Any] = {
        "time_attr": "step",
        "metric": sweep.metrics[0],
        "mode": sweep.modes[0],
    }
    scheduler: _Asha | _Median | _Added
    match sweep.scheduler:
        case Asha() as asha:
            scheduler = _Asha(
                max_t=total_steps,
                grace_period=asha.grace,
                reduction_factor=asha.reduction,
                brackets=1,
                **ranked,
            )
        case Median() as median:
            scheduler = _Median(
                grace_period=median.grace,
                min_samples_required=median.min_trials,
                hard_stop=True,
                **ranked,
            )
        case Pbt() as pbt:
            mutations = {
                "trial": {"values": {path: _mutation(axis) for path, axis in sweep.space.items()}}
            }
            return Population(
                sweep,
                perturbation_interval=pbt.interval,
                quantile_fraction=pbt.quantile,
                resample_probability=pbt.resample,
                hyperparam_mutations=mutations,
                **ranked,
            )
        case Scheduler(chooser="") as added:
            scheduler = _Added(added, sweep.metrics[0], sweep.modes[0])
        case _:
            return FIFOScheduler()
    controller: Any = None
    for run_id, curve in past.items():  # as if its metrics had just been measured
        trial: Any = _EndedTrial(run_id)
        scheduler.on_trial_add(controller, trial)
        result: dict[str, Any] = {}
        for step, value in zip(curve.steps, curve.values, strict=True):
            result = {"step": step, ranked["metric"]: value}
            # it only needs to remember them: this trial has ended
            if isinstance(scheduler, _Median):
                scheduler.on_trial_complete(controller, trial, result)
            else:
                scheduler.on_trial_result(controller, trial, result)
        if not isinstance(scheduler, _Median):
            scheduler.on_trial_complete(controller, trial, result)
    scheduler.stop_trial = stop_trial
    return scheduler


class _StopsAfterCheckpoint:
    """Mixin that requests a trial to stop after a checkpoint: Tune itself would kill it ten seconds
    later.
    """

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


class _StopsByCurves(FIFOScheduler):
    """Tune's side of a scheduler that decides by the curves of all trials."""

    def __init__(self, scheduler: Scheduler, metric: str, mode: str) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self._curves: dict[str, TrialCurve] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide after an evaluation."""
        value = result.get(self._metric)
        if value is None:
            return TrialScheduler.CONTINUE
        before = self._curves.get(trial.trial_id, TrialCurve([], []))
        curve = TrialCurve([*before.steps, result["step"]], [*before.values, self._sign * value])
        self._curves[trial.trial_id] = curve
        others = [other for trial_id, other in self._curves.items() if trial_id != trial.trial_id]
        is_over = result["step"] >= self._scheduler.grace and self._scheduler.stops(curve, others)
        if is_over:
            return TrialScheduler.STOP
        return TrialScheduler.CONTINUE


class _Added(_StopsAfterCheckpoint, _StopsByCurves):
    """Scheduler of an add-on."""


class _Asha(_StopsAfterCheckpoint, AsyncHyperBandScheduler):
    """Tune's ASHA."""


class _Median(_StopsAfterCheckpoint, MedianStoppingRule):
    """Tune's median stopping, which assumes that a trial's last result has the metric; a failed
    trial's has not.
    """

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if self._metric in result:
            super().on_trial_complete(tune_controller, trial, result)


@dataclass(frozen=True)
class _EndedTrial:
    """The part of Tune's trial that schedulers read of an ended one."""

    trial_id: str


def _mutation(axis: Axis) -> Any:
    """Mutation of an axis in Tune's terms: a range is scaled by a factor or resampled, a list moves
    to a neighbour.
    """
    if isinstance(axis, Choice | Grid):
        return list(axis.values)
    if isinstance(axis, Integer):
        return tune.randint(axis.low, axis.high + 1)
    if isinstance(axis, LogUniform):
        return tune.loguniform(axis.low, axis.high)
    return tune.uniform(axis.low, axis.high)


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
        if self._metric not in result:
            return TrialScheduler.CONTINUE
        if result["step"] - state.last_perturbation_time < self._perturbation_interval:
            return TrialScheduler.CONTINUE
        self._save_trial_state(state, result["step"], result, trial)
        if math.isnan(state.last_score):
            # Tune would drop it from the ranking, and never replace it
            state.last_score = -math.inf
        # its process may have been lost while it waited, and restarted
        if trial not in self._waiting:
            self._waiting.append(trial)
        self._perturb_when_complete(tune_controller)
        return TrialScheduler.NOOP

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Remove an ended trial, for which alone the others may have waited, and its score. Tune's
        own does nothing.
        """
        self._trial_state[trial].last_score = None
        self._ended.append(trial)
        self._waiting = [each for each in self._waiting if each is not trial]
        self._perturb_when_complete(tune_controller)

    on_trial_error = on_trial_remove

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self.on_trial_remove(tune_controller, trial)

    def _perturb_when_complete(self, controller: Any) -> None:
        """Let all trials continue, the worst with another one's weights, once all of them wait."""
        known = [*self._waiting, *self._ended]
        still_train = any(
            trial not in known and not trial.is_finished() for trial in controller.get_live_trials()
        )
        if not self._waiting or still_train:
            return
        waiting = sorted(self._waiting, key=_number)
        self._waiting = []
        states = self._trial_state
        front = max(states[trial].last_train_time for trial in waiting)
        behind = [trial for trial in waiting if states[trial].last_train_time < front]
        if behind:  # after a resume or a lost process: they train up to the others' step first
            self._waiting = [trial for trial in waiting if trial not in behind]
            for trial in behind:
                states[trial].last_perturbation_time = front - self._perturbation_interval
                schedule_training(controller, trial)
            return
        lower, upper = self._quantiles()
        for trial in waiting:
            states[trial].last_perturbation_time = states[trial].last_train_time
        for trial in waiting:
            if trial not in lower:
                schedule_training(controller, trial)
                continue
            # Restart it from the donor's checkpoint. Tune reuses one process a perturbation; others
            # start again.
            donor = self._random(trial).choice(sorted(upper, key=_number))
            config, _ = self._get_new_config(trial, donor)
            controller.pause_trial(trial, should_checkpoint=False)
            trial.set_config(config)

    def _random(self, trial: Any) -> random.Random:
        """Random numbers keyed by seed, trial and step."""
        return random.Random(
            f"{self._sweep.seed}/{_number(trial)}/{self._trial_state[trial].last_train_time}"
        )

    def _get_new_config(
        self, trial: Any, trial_to_clone: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Configure the trial with the donor's values, perturbed within their axes.

        Values that make no valid experiment together stay the donor's.
        """
        # Tune mutates by the global generators, which other threads use too.
        generator = self._random(trial)
        random.seed(generator.random())
        np.random.seed(generator.randrange(2**32))
        mutated, operations = super()._get_new_config(trial, trial_to_clone)
        donor = trial_to_clone.config["trial"]
        own = trial.config["trial"]
        values = {
            path: nearest_value(self._sweep.space[path], value)
            for path, value in mutated["trial"]["values"].items()
        }
        try:
            experiment_for(self._sweep, values)
        except UserError:
            values = dict(donor["values"])
        step = self._trial_state[trial_to_clone].last_train_time
        takeover = {"run_id": donor["run_id"], "step": step, "key": secrets.token_hex(4)}
        config = {
            "number": own["number"],
            "run_id": own["run_id"],
            "values": values,
            "takeover": takeover,
        }
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
