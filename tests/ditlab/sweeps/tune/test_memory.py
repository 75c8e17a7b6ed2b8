"""A sweep that was killed at drawn moments, and resumed, decides as one that was not."""

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.reports.sweep_records import Trial
from ditlab.spec.sweep_space import enumerate_trials
from ditlab.sweeps.folder import Takeover
from ditlab.sweeps.memory import PastTrial, TrialEvaluation, last_generation
from ditlab.sweeps.search import OptunaTrials, make_scheduler
from support.sweeps import METRIC, sweep_of

STEPS = 12
EVERY = 2
TRIALS = 8
STOPPING = {
    "asha": {"kind": "asha", "grace": 2, "reduction": 2},
    "median": {"kind": "median", "grace": 2, "min_trials": 2},
}
CONTROLLER = SimpleNamespace(search_alg=None, get_live_trials=list)


class KilledError(Exception):
    """The process that leads the sweep is gone."""


@dataclass
class Clock:
    """Counts what happens, and kills the sweep at one of these moments."""

    kill_at: int = 0
    moment: int = 0

    def tick(self) -> int:
        self.moment += 1
        if self.moment == self.kill_at:
            raise KilledError
        return self.moment


@dataclass
class Journaled:
    """Files that a trial has left on the disk."""

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    evaluations: list[TrialEvaluation] = field(default_factory=list)
    last_step: int = 0
    checkpoint: int = 0
    status: str = "waiting"
    takeovers: list[Takeover] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return f"run-{self.number}"

    def past(self) -> PastTrial:
        return PastTrial(
            self.number,
            self.run_id,
            self.values,
            self.status,
            list(self.evaluations),
            self.last_step,
            STEPS,
            list(self.takeovers),
        )

    def evaluate(self, step: int, value: float, time: int) -> None:
        """Log an evaluation, once."""
        if all(each.step != step for each in self.evaluations):
            self.evaluations.append(TrialEvaluation(step, value, time))

    def value_at(self, step: int) -> float | None:
        return self.past().value_at(step)


class FakeTrial:
    """The part of Tune's trial that schedulers read."""

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.trial_id = f"tune-{random.random()}"  # another in each session
        self.experiment_tag = ""
        self.config = {"trial": config}
        self.number = number
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_finished(self) -> bool:
        return False


def value_of(seed: int, number: int, step: int) -> float:
    """Metric of a trial at a step; that of one trial is no number."""
    rng = random.Random(f"{seed}/{number}/{step}")
    return float("nan") if number == 3 and step > 4 else rng.random() + number / 10 - step / 20


def session(sweep: Any, disk: list[Journaled], clock: Clock, draws: random.Random) -> None:
    """Train all trials that have not ended, one after another."""
    stopped: list[int] = []
    past = [one.past() for one in disk]
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    for one in disk:
        if one.status not in ("waiting", "running"):
            continue
        trial: Any = FakeTrial(one.number, {"number": one.number, "run_id": one.run_id})
        scheduler.on_trial_add(CONTROLLER, trial)
        one.status = "running"
        step = one.checkpoint
        known = one.value_at(step)
        if known is not None and 0 < step < STEPS:  # it may wait there for a decision
            scheduler.on_trial_result(CONTROLLER, trial, {"step": step, METRIC: known})
        while one.number not in stopped and step < STEPS:
            step += EVERY
            one.last_step = max(one.last_step, step - 1)
            clock.tick()
            one.last_step = max(one.last_step, step)
            one.evaluate(step, value_of(sweep.seed, one.number, step), clock.tick())
            if one.number == 5 and step > 6:
                one.status = "failed"
                break
            if draws.random() < 0.5:
                one.checkpoint = step
            clock.tick()
            result = {"step": step, METRIC: value_of(sweep.seed, one.number, step)}
            if step < STEPS:
                scheduler.on_trial_result(CONTROLLER, trial, result)
            clock.tick()
        if one.status == "failed":
            end = {"step": step, "done": True, "status": "failed"}
            scheduler.on_trial_complete(CONTROLLER, trial, end)
            continue
        clock.tick()
        one.checkpoint = step
        one.status = "stopped" if one.number in stopped else "finished"
        end = {"step": step, METRIC: value_of(sweep.seed, one.number, step)}
        scheduler.on_trial_complete(CONTROLLER, trial, {**end, "status": one.status})


def killed(run: Any, sweep: Any, disk: list[Journaled], draws: random.Random) -> None:
    """Run a sweep that is killed at up to three drawn moments, and resumed."""
    clock = Clock()
    for _ in range(3):
        clock.kill_at = clock.moment + draws.randrange(1, 60)
        with suppress(KilledError):
            run(sweep, disk, clock, draws)
    clock.kill_at = 0
    run(sweep, disk, clock, draws)


def ends(disk: list[Journaled]) -> list[Any]:
    """Status, last step and steps of evaluations of each trial."""
    return [(one.status, one.last_step, [each.step for each in one.evaluations]) for one in disk]


def new_disk() -> list[Journaled]:
    return [Journaled(number) for number in range(TRIALS)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of a rung without a number
@pytest.mark.parametrize("kind", STOPPING)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_killed_sweep_stops_the_trials_that_an_unbroken_one_stops(kind, mode):
    fixed = {"training.steps": STEPS, "evaluation.every": EVERY}
    all_ends = set()
    for seed in range(40):
        sweep = sweep_of(fixed=fixed, scheduler=STOPPING[kind], mode=mode, seed=seed)
        unbroken = new_disk()
        session(sweep, unbroken, Clock(), random.Random(0))
        draws = random.Random(seed)
        disk = new_disk()
        killed(session, sweep, disk, draws)
        assert ends(disk) == ends(unbroken), (seed, ends(disk), ends(unbroken))
        all_ends |= {status for status, _, _ in ends(unbroken)}
    assert all_ends == {"finished", "stopped", "failed"}


def test_concurrent_trials_keep_the_decisions_that_were_made():
    """Three trials pass a rung in the order of their times, and not of their numbers."""
    fixed = {"training.steps": STEPS, "evaluation.every": EVERY}
    sweep = sweep_of(fixed=fixed, scheduler=STOPPING["asha"])
    past = [
        PastTrial(0, "run-0", {}, "running", [TrialEvaluation(2, 5.0, 30)], 2, STEPS),
        PastTrial(1, "run-1", {}, "running", [TrialEvaluation(2, 1.0, 10)], 3, STEPS),
        PastTrial(2, "run-2", {}, "running", [TrialEvaluation(2, 4.0, 20)], 3, STEPS),
    ]
    stopped: list[int] = []
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    for number, value in enumerate((5.0, 1.0, 4.0)):
        trial: Any = FakeTrial(number, {"number": number, "run_id": f"run-{number}"})
        scheduler.on_trial_add(CONTROLLER, trial)
        scheduler.on_trial_result(CONTROLLER, trial, {"step": 2, METRIC: value})
    # the third has trained on after step 2, so it was let through there, whoever came first
    assert stopped == [0]


# ---- population-based training

LR = {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1}}
INTERVAL = 4


class PopulationController:
    """Tune's controller for a population of which all trials train at once."""

    search_alg = None

    def __init__(self, trials: list[Any]) -> None:
        self.trials = trials
        self.waiting: set[int] = set()

    def get_live_trials(self) -> list[Any]:
        return self.trials

    def pause_trial(self, trial: Any, should_checkpoint: bool) -> None:
        self.waiting.discard(trial.number)

    def _schedule_trial_train(self, trial: Any) -> None:
        self.waiting.discard(trial.number)


def population_session(
    sweep: Any, disk: list[Journaled], clock: Clock, draws: random.Random
) -> None:
    """Train a population, whose trials take their steps in a drawn order."""
    scheduler: Any = make_scheduler(sweep, STEPS, [one.past() for one in disk], [].append)
    takeovers = scheduler.open_takeovers()
    open_ones = [one for one in disk if one.status != "finished"]
    trials: list[Any] = []
    for one in open_ones:
        values = one.takeovers[-1].values if one.takeovers else one.values
        latest = {"number": one.number, "run_id": one.run_id, "values": values}
        trials.append(FakeTrial(one.number, takeovers.get(one.number, latest)))
    controller = PopulationController(trials)
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    clock.tick()
    reported: set[int] = set()
    while any(one.status != "finished" for one in open_ones):
        able = [
            trial
            for trial in trials
            if trial.number not in controller.waiting and disk[trial.number].status != "finished"
        ]
        trial = draws.choice(able)
        one = disk[trial.number]
        taken = trial.config["trial"].get("takeover")
        if taken and all(done.key != taken["key"] for done in one.takeovers):
            one.checkpoint = taken["step"]
            clock.tick()
            values = dict(trial.config["trial"]["values"])
            one.takeovers.append(
                Takeover(taken["step"], taken["run_id"], taken["step"], values, taken["key"])
            )
            clock.tick()
            reported.add(one.number)
            continue
        step = one.checkpoint
        if one.number in reported or one.value_at(step) is None:
            step += EVERY
            one.last_step = max(one.last_step, step)
            clock.tick()
            value = value_of(sweep.seed, one.number, step) + len(one.takeovers)
            one.evaluate(step, value, clock.tick())
            clock.tick()
            one.checkpoint = step
        reported.add(one.number)
        if step == STEPS:
            one.status = "finished"
            scheduler.on_trial_complete(controller, trial, {"step": step, "status": "finished"})
            continue
        controller.waiting.add(one.number)
        result = {"step": step, METRIC: one.value_at(step)}
        if scheduler.on_trial_result(controller, trial, result) == TrialScheduler.CONTINUE:
            controller.waiting.discard(one.number)
        clock.tick()


def new_population(sweep: Any) -> list[Journaled]:
    return [Journaled(number, values) for number, values in enumerate(enumerate_trials(sweep))]


def test_a_killed_population_takes_over_what_an_unbroken_one_takes_over():
    fixed = {"training.steps": STEPS, "evaluation.every": EVERY}
    num_taken = 0
    for seed in range(40):
        pbt = {"kind": "pbt", "interval": INTERVAL}
        sweep = sweep_of(LR, fixed=fixed, scheduler=pbt, trials=5, seed=seed)
        unbroken = new_population(sweep)
        population_session(sweep, unbroken, Clock(), random.Random(0))
        draws = random.Random(seed)
        disk = new_population(sweep)
        killed(population_session, sweep, disk, draws)
        assert [one.takeovers for one in disk] == [one.takeovers for one in unbroken], seed
        assert ends(disk) == ends(unbroken)
        num_taken += sum(len(one.takeovers) for one in unbroken)
    assert num_taken == 40 * 2 * 2  # two perturbations, at which two of five are replaced


def test_a_perturbation_waits_for_a_trial_that_has_not_begun():
    ready = [TrialEvaluation(4, 1.0, 1)]
    past = [
        PastTrial(0, "a", {}, "running", ready, 4, STEPS),
        PastTrial(1, "b", {}),
    ]
    assert last_generation(past, INTERVAL, STEPS).step == 0
    ended = [past[0], replace(past[1], status="failed")]
    assert last_generation(ended, INTERVAL, STEPS).step == INTERVAL


# ---- Optuna

SPACE = {
    "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "model.width": {"kind": "choice", "values": [128, 160]},
    "model.num_heads": {"kind": "choice", "values": [4, 5]},  # 128 is no multiple of 5
}


def proposals(sweep: Any, draws: random.Random | None) -> list[Trial]:
    """All trials of a sweep, one after another, with their results; killed where `draws` says."""
    ledger: list[Trial] = []

    def plan(number: int, values: Any, configuration: int, seed: int | None) -> Trial:
        ledger.append(
            Trial(number, f"run-{number}", dict(values), configuration=configuration, seed=seed)
        )
        return ledger[-1]

    search = OptunaTrials(sweep, [], plan)
    tune_id = 0
    while True:
        tune_id += 1
        asked: Any = search.suggest(str(tune_id))
        if asked == "FINISHED":
            return ledger
        if draws and draws.random() < 0.3:
            search = OptunaTrials(sweep, list(ledger), plan)
            continue
        trial = ledger[asked["trial"]["number"]]
        value = abs(trial.values["optimizer.lr"] - 0.01) * trial.values["model.num_heads"]
        status = "finished" if trial.number % 4 else "stopped"
        found = {METRIC: value}
        ledger[trial.number] = replace(trial, status=status, step=6, metrics=found)
        result = {"step": 6, **found, "done": True, "status": status}
        search.on_trial_complete(str(tune_id), result)
        if draws and draws.random() < 0.3:
            search = OptunaTrials(sweep, list(ledger), plan)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_killed_search_proposes_what_an_unbroken_one_proposes(seeds):
    for seed in range(3):
        search = {"kind": "optuna", "startup": 4}
        sweep = sweep_of(SPACE, search=search, trials=12, seed=seed, seeds=seeds)
        unbroken = proposals(sweep, None)
        assert len(unbroken) == 12 * seeds
        assert proposals(sweep, random.Random(seed)) == unbroken


def test_a_search_trains_each_configuration_of_a_small_space_once():
    space = {
        "model.depth": {"kind": "int", "low": 1, "high": 4},
        "optimizer.lr": {"kind": "choice", "values": [1e-3, 1e-2]},
        "model.num_heads": {"kind": "choice", "values": [4]},
    }
    sweep = sweep_of(space, search={"kind": "optuna", "startup": 2}, trials=30)
    found = [tuple(trial.values.values()) for trial in proposals(sweep, random.Random(1))]
    assert len(found) == len(set(found)) == 8
