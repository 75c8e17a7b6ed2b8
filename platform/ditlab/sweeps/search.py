"""Tune's searches and schedulers for a sweep, which go on from the trials of earlier sessions.

Search is Optuna's (Akiba et al. 2019, arXiv:1907.10902). ASHA: Li et al. 2020, arXiv:1810.05934;
median stopping: Golovin et al. 2017; population-based training, here synchronous: Jaderberg et al.
2017, arXiv:1711.09846.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import SimpleNamespace
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
from ditlab.spec.sweep_space import draw_values, experiment_for, valid_combinations, values_key
from ditlab.sweeps.chooser import ChosenTrial, Round, TrialChooser
from ditlab.sweeps.folder import free_numbers
from ditlab.sweeps.memory import (
    Generation,
    Member,
    PastTrial,
    SeenEvaluation,
    in_order,
    last_generation,
)

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
    """Tune's searcher that proposes by Optuna, from the trials of the ledger alone.

    Ray's own OptunaSearch cannot be refilled: it takes no evaluated points of a space with
    conditions.
    """

    def __init__(self, sweep: Sweep, past: Sequence[Trial], plan: Callable[..., Trial]) -> None:
        """`plan` writes a new trial, by number, values, configuration and seed, to the ledger."""
        super().__init__()
        self._sweep = sweep
        self._plan = plan
        self.trials = {trial.number: trial for trial in past}
        """All trials of the ledger, as far as they are known."""
        self._waiting = [trial for trial in past if not trial.has_ended]
        self._numbers = free_numbers(past)
        known = {trial.configuration for trial in past}
        self._free_configurations = [
            configuration
            for configuration in range(sweep.trials or 0)
            if configuration not in known
        ]

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Configure the next trial: first unfinished ones of an earlier session, then Optuna's
        proposals, each under all seeds."""
        if not self._waiting and not self._propose():
            return Searcher.FINISHED
        trial = self._running[trial_id] = self._waiting.pop(0)
        return {"trial": trial.to_dict()}

    def _propose(self) -> bool:
        """Ask for a configuration and plan its trials; False where there is none left."""
        if not self._free_configurations:
            return False
        configuration = self._free_configurations.pop(0)
        values = propose(self._sweep, list(self.trials.values()), configuration)
        if values is None:
            return False
        self._waiting = [
            self._plan(next(self._numbers), values, configuration, seed)
            for seed in self._sweep.seed_list
        ]
        self.trials |= {trial.number: trial for trial in self._waiting}
        return True

    def _complete(self, trained: Trial, status: str, last: dict[str, Any]) -> None:
        metrics = {name: float(last[name]) for name in self._sweep.metrics if name in last}
        ended = replace(trained, status=status, step=int(last.get("step", 0)), metrics=metrics)
        self.trials[ended.number] = ended  # an interrupted one is resumed in the next session


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


def propose(sweep: Sweep, trials: Sequence[Trial], configuration: int) -> dict[str, Any] | None:
    """Let Optuna propose the values of a configuration, by its number, after those of `trials`.

    Equal trials give equal values, so that a sweep that was killed goes on alike. Values that make
    no valid experiment count as pruned, as Optuna would propose failed ones again. Those of an
    earlier configuration count once more with its result, and others are asked for. None where no
    valid values are found that are new.
    """
    from optuna.trial import TrialState

    seed = random.Random(f"{sweep.seed}/{configuration}").randrange(2**32)
    study = make_study(sweep, trials, seed)
    known = {}
    by_configuration = _by_configuration(trials).values()
    for ended, members in zip(study.trials, by_configuration, strict=True):
        known[values_key(members[0].values)] = ended
    for _ in range(MAX_PROPOSALS):
        proposal = study.ask()
        values = suggest_values(sweep, proposal)
        twin = known.get(values_key(values))
        if twin is not None:
            _tell_again(study, proposal, twin)
            continue
        try:
            experiment_for(sweep, values)
        except UserError:
            study.tell(proposal, state=TrialState.PRUNED)
            continue
        return values
    new = (one for one in valid_combinations(sweep) if values_key(one) not in known)
    return next(new, None)


def make_study(sweep: Sweep, trials: Sequence[Trial], seed: int = 0) -> Any:
    """Make a study with a trial for each configuration, by its number; those that have not ended
    count as running. `seed` decides what it proposes next.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = sweep.search
    assert isinstance(search, OptunaSearch)
    sampler = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=search.startup, constant_liar=True
    )
    directions: Any = ["minimize" if mode == "min" else "maximize" for mode in sweep.modes]
    study = optuna.create_study(sampler=sampler, directions=directions)
    study.add_trials(
        [_study_trial(sweep, members) for members in _by_configuration(trials).values()]
    )
    return study


def _by_configuration(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """Group the trials of each configuration, both by number."""
    configurations: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.configuration, trial.number)):
        configurations.setdefault(trial.configuration, []).append(trial)
    return configurations


def _study_trial(sweep: Sweep, members: Sequence[Trial]) -> Any:
    """Describe a configuration to Optuna by its means over seeds.

    One that a scheduler stopped counts as pruned at its step, if there is one metric; one of which
    a seed failed has failed; one of which a seed has not ended is running.
    """
    from optuna.trial import TrialState, create_trial

    values = members[0].values
    parameters = dict(values)
    distributions = {}
    for path, axis in sweep.space.items():
        if path not in values:
            continue
        distributions[path] = _distribution(axis)
        if isinstance(axis, Choice | Grid):
            parameters[path] = index_of(axis, values[path])
    found: dict[str, Any] = {"params": parameters, "distributions": distributions}
    if not all(trial.has_ended for trial in members):
        return create_trial(state=TrialState.RUNNING, **found)
    means = [
        fmean(trial.metrics.get(name, math.nan) for trial in members) for name in sweep.metrics
    ]
    statuses = {trial.status for trial in members}
    if "failed" in statuses or not all(math.isfinite(value) for value in means):
        return create_trial(state=TrialState.FAIL, **found)
    if "stopped" in statuses and len(means) == 1:
        step = min(trial.step for trial in members)
        found["intermediate_values"] = {step: means[0]}
        return create_trial(state=TrialState.PRUNED, **found)
    return create_trial(values=means, **found)


def _distribution(axis: Axis) -> Any:
    """Optuna's distribution of an axis. Choices are suggested by index, as they may be mappings."""
    from optuna import distributions

    if isinstance(axis, Choice | Grid):
        return distributions.CategoricalDistribution(list(range(len(axis.values))))
    if isinstance(axis, Integer):
        return distributions.IntDistribution(axis.low, axis.high, step=axis.step)
    is_log = isinstance(axis, LogUniform)
    return distributions.FloatDistribution(axis.low, axis.high, log=is_log)


def _tell_again(study: Any, proposal: Any, twin: Any) -> None:
    """Tell the result of a configuration for one with equal values; nothing while it runs."""
    from optuna.trial import TrialState

    if twin.state == TrialState.COMPLETE:
        study.tell(proposal, twin.values)
    elif twin.state != TrialState.RUNNING:
        for step, value in twin.intermediate_values.items():
            proposal.report(value, step)
        study.tell(proposal, state=twin.state)


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


def make_scheduler(
    sweep: Sweep,
    total_steps: int,
    past: Sequence[PastTrial],
    stop_trial: Callable[[int], None],
) -> TrialScheduler:
    """Make the sweep's scheduler, whose time is a trial's training step.

    `total_steps` are those of the longest trial; `past` has the trials of earlier sessions, whose
    evaluations it receives again in the order in which they were measured; `stop_trial` makes the
    trial with a number stop after a checkpoint.
    """
    ranked: dict[str, Any] = {
        "time_attr": "step",
        "metric": sweep.metrics[0],
        "mode": sweep.modes[0],
    }
    rule: TrialScheduler
    match sweep.scheduler:
        case Asha() as asha:
            rule = AsyncHyperBandScheduler(
                max_t=total_steps,
                grace_period=asha.grace,
                reduction_factor=asha.reduction,
                brackets=1,
                **ranked,
            )
        case Median() as median:
            rule = _Median(
                grace_period=median.grace,
                min_samples_required=median.min_trials,
                min_time_slice=math.inf,  # it would pause trials that have nothing to compare with
                hard_stop=True,
                **ranked,
            )
        case Pbt() as pbt:
            mutations = {
                "trial": {"values": {path: _mutation(axis) for path, axis in sweep.space.items()}}
            }
            return Population(
                sweep,
                last_generation(past, pbt.interval, total_steps),
                perturbation_interval=pbt.interval,
                quantile_fraction=pbt.quantile,
                resample_probability=pbt.resample,
                hyperparam_mutations=mutations,
                **ranked,
            )
        case Scheduler(chooser="") as added:
            rule = _StopsByCurves(added, sweep.metrics[0], sweep.modes[0])
        case _:
            return FIFOScheduler()
    scheduler = EvaluationScheduler(rule, sweep.metrics[0], stop_trial)
    scheduler.replay(in_order(past))
    return scheduler


@dataclass(frozen=True)
class _RuledTrial:
    """The part of Tune's trial that a rule reads: a run, which later sessions know too."""

    trial_id: str


class EvaluationScheduler(FIFOScheduler):
    """Tune's side of a rule that stops trials. Each evaluation is decided once, in whichever
    session it comes first.

    A trial that is stopped is asked to end after a checkpoint: Tune itself would kill it ten
    seconds later.
    """

    def __init__(
        self, rule: TrialScheduler, metric: str, stop_trial: Callable[[int], None]
    ) -> None:
        """`rule` decides on trials whose ids are those of their runs, by `metric`."""
        super().__init__()
        self._rule = rule
        self._metric = metric
        self._stop_trial = stop_trial
        self._seen: dict[str, set[int]] = {}
        """Steps of the evaluations that the rule knows, by run."""
        self._stops: dict[str, int] = {}
        """Step at which a run is stopped."""

    def replay(self, evaluations: Sequence[SeenEvaluation]) -> None:
        """Show the evaluations of earlier sessions to the rule, in their order."""
        for each in evaluations:
            result = {"step": each.step, self._metric: each.value}
            if each.is_end:
                self._end(None, each.run_id, result)
                continue
            self._decide(None, each.run_id, result)
            if each.went_on:
                self._stops.pop(each.run_id, None)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide after an evaluation; one that is known keeps its decision."""
        run_id = trial.config["trial"]["run_id"]
        if self._metric in result and run_id not in self._stops:
            self._decide(tune_controller, run_id, result)
        if result["step"] >= self._stops.get(run_id, math.inf):
            self._stop_trial(_number(trial))
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Take in the last value of a trial that has finished."""
        if self._metric in result and result.get("status") == "finished":
            self._end(tune_controller, trial.config["trial"]["run_id"], result)

    def _decide(self, controller: Any, run_id: str, result: dict[str, Any]) -> None:
        step = result["step"]
        if self._is_new(controller, run_id, step):
            decision = self._rule.on_trial_result(controller, _RuledTrial(run_id), result)
            if decision == TrialScheduler.STOP:
                self._stops[run_id] = step

    def _end(self, controller: Any, run_id: str, result: dict[str, Any]) -> None:
        if self._is_new(controller, run_id, result["step"]):
            self._rule.on_trial_complete(controller, _RuledTrial(run_id), result)

    def _is_new(self, controller: Any, run_id: str, step: int) -> bool:
        """Return True for an evaluation that the rule does not know, which it does from here on."""
        if run_id not in self._seen:
            self._seen[run_id] = set()
            self._rule.on_trial_add(controller, _RuledTrial(run_id))
        if step in self._seen[run_id]:
            return False
        self._seen[run_id].add(step)
        return True


class _StopsByCurves(FIFOScheduler):
    """Rule of a scheduler of an add-on, which decides by the curves of all trials."""

    def __init__(self, scheduler: Scheduler, metric: str, mode: str) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self._curves: dict[str, TrialCurve] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide after an evaluation."""
        curve = self._extend(trial, result)
        others = [other for trial_id, other in self._curves.items() if trial_id != trial.trial_id]
        is_over = result["step"] >= self._scheduler.grace and self._scheduler.stops(curve, others)
        if is_over:
            return TrialScheduler.STOP
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Take in a trial's last value."""
        self._extend(trial, result)

    def _extend(self, trial: Any, result: dict[str, Any]) -> TrialCurve:
        before = self._curves.get(trial.trial_id, TrialCurve([], []))
        values = [*before.values, self._sign * result[self._metric]]
        curve = self._curves[trial.trial_id] = TrialCurve([*before.steps, result["step"]], values)
        return curve


class _Median(MedianStoppingRule):
    """Tune's median stopping, for trials that an earlier session may have let train on."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        self._stopped_trials.discard(trial)
        decision: str = super().on_trial_result(tune_controller, trial, result)
        return decision


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
    """Tune's mutations, applied once all trials wait at the same step.

    A trial that shall take over another one's checkpoint gets `takeover` in its config.
    """

    def __init__(self, sweep: Sweep, past: Generation, **settings: Any) -> None:
        """`past` is the last perturbation of an earlier session."""
        super().__init__(log_config=False, **settings)
        self._sweep = sweep
        self._past = past
        self._waiting: list[Any] = []
        self._ended: list[Any] = []

    def open_takeovers(self) -> dict[int, dict[str, Any]]:
        """Return the configurations of takeovers that an earlier session has decided and not done,
        by the trial's number.
        """
        found = self._takeovers(self._past.members, self._past.step)
        return {number: found[number] for number in found if number in self._past.open_numbers}

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial, which was perturbed last in an earlier session or never."""
        super().on_trial_add(tune_controller, trial)
        self._trial_state[trial].last_perturbation_time = self._past.step

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Let a trial wait that has reached a perturbation."""
        state = self._trial_state[trial]
        if self._metric not in result:
            return TrialScheduler.CONTINUE
        if result["step"] - state.last_perturbation_time < self._perturbation_interval:
            return TrialScheduler.CONTINUE
        self._save_trial_state(state, result["step"], result, trial)
        # its process may have been lost while it waited, and restarted
        if trial not in self._waiting:
            self._waiting.append(trial)
        self._perturb_when_complete(tune_controller)
        return TrialScheduler.NOOP

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Remove an ended trial, for which alone the others may have waited. Tune's own does
        nothing.
        """
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
        members = []
        for trial in waiting:
            own = trial.config["trial"]
            states[trial].last_perturbation_time = front
            value = states[trial].last_result[self._metric]
            members.append(Member(own["number"], own["run_id"], own["values"], value))
        takeovers = self._takeovers(members, front)
        for trial in waiting:
            if _number(trial) not in takeovers:
                schedule_training(controller, trial)
                continue
            # Restart it from the donor's checkpoint. Tune reuses one process a perturbation; others
            # start again.
            controller.pause_trial(trial, should_checkpoint=False)
            trial.set_config({"trial": takeovers[_number(trial)]})

    def _takeovers(self, members: Sequence[Member], step: int) -> dict[int, dict[str, Any]]:
        """Configure the trials that take over the checkpoint of another one at a step, by number:
        a function of the members and the seed.
        """
        if len(members) < 2:
            return {}
        ranked = sorted(members, key=lambda member: (self._score(member), member.number))
        num = min(math.ceil(len(ranked) * self._quantile_fraction), len(ranked) // 2)
        donors = sorted(ranked[-num:], key=lambda member: member.number)
        return {
            member.number: self._takeover(member, donors, step)
            for member in sorted(ranked[:num], key=lambda member: member.number)
        }

    def _score(self, member: Member) -> float:
        """The metric with a sign such that higher is better; that of a NaN is the worst."""
        if math.isnan(member.value):
            return -math.inf
        return float(self._metric_op * member.value)

    def _takeover(self, member: Member, donors: Sequence[Member], step: int) -> dict[str, Any]:
        """Configure a trial with the values of one of the donors, perturbed within their axes.

        Values that make no valid experiment together stay the donor's.
        """
        # keyed by seed, trial and step
        generator = random.Random(f"{self._sweep.seed}/{member.number}/{step}")
        donor = generator.choice(donors)
        # Tune mutates by the global generators, which other threads use too.
        generator = random.Random(f"{self._sweep.seed}/{member.number}/{step}")
        random.seed(generator.random())
        np.random.seed(generator.randrange(2**32))
        cloned: Any = SimpleNamespace(config={"trial": {"values": dict(donor.values)}})
        mutated, _ = self._get_new_config(cloned, cloned)
        values = {
            path: nearest_value(self._sweep.space[path], value)
            for path, value in mutated["trial"]["values"].items()
        }
        try:
            experiment_for(self._sweep, values)
        except UserError:
            values = dict(donor.values)
        return {
            "number": member.number,
            "run_id": member.run_id,
            "values": values,
            "takeover": {"run_id": donor.run_id, "step": step, "key": f"step {step}"},
        }


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
