"""A sweep that was killed at drawn moments, and resumed, decides as one that was not."""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.spec.sweep_space import enumerate_trials
from ditlab.sweeps.folder import Takeover
from ditlab.sweeps.memory import PastTrial, TrialEvaluation, last_generation
from ditlab.sweeps.search import make_scheduler
from support.searches import Session
from support.sweeps import LR, METRIC, NO_TRIALS, FakeTrial, sweep_of

STEPS = 12
EVERY = 2
FIXED = {"training.steps": STEPS, "evaluation.every": EVERY}
STOPPING = {
    "asha": {"kind": "asha", "grace": 2, "reduction": 2},
    "median": {"kind": "median", "grace": 2, "min_trials": 2},
}


class KilledError(Exception):
    """The process that leads the sweep is gone."""


class Clock:
    """Counts what happens, and kills the sweep at one of these moments."""

    kill_at = 0
    moment = 0

    def tick(self):
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
    def run_id(self):
        return f"run-{self.number}"

    def past(self):
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

    def evaluate(self, step, value, time):
        """Log an evaluation, once."""
        if all(each.step != step for each in self.evaluations):
            self.evaluations.append(TrialEvaluation(step, value, time))

    def value_at(self, step):
        return self.past().value_at(step)


def value_of(seed, number, step):
    """Metric of a trial at a step; that of one trial is no number."""
    rng = random.Random(f"{seed}/{number}/{step}")
    return float("nan") if number == 3 and step > 4 else rng.random() + number / 10 - step / 20


def session(sweep, disk, clock, draws):
    """Train all trials that have not ended, one after another."""
    stopped = []
    past = [one.past() for one in disk]
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    for one in disk:
        if one.status not in ("waiting", "running"):
            continue
        trial = FakeTrial(one.number)
        scheduler.on_trial_add(NO_TRIALS, trial)
        one.status = "running"
        step = one.checkpoint
        known = one.value_at(step)
        if known is not None and 0 < step < STEPS:  # it may wait there for a decision
            scheduler.on_trial_result(NO_TRIALS, trial, {"step": step, METRIC: known})
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
                scheduler.on_trial_result(NO_TRIALS, trial, result)
            clock.tick()
        if one.status == "failed":
            end = {"step": step, "done": True, "status": "failed"}
            scheduler.on_trial_complete(NO_TRIALS, trial, end)
            continue
        clock.tick()
        one.checkpoint = step
        one.status = "stopped" if one.number in stopped else "finished"
        end = {"step": step, METRIC: value_of(sweep.seed, one.number, step)}
        scheduler.on_trial_complete(NO_TRIALS, trial, {**end, "status": one.status})


def killed(run, sweep, disk, draws):
    """Run a sweep that is killed at up to three drawn moments, and resumed."""
    clock = Clock()
    for _ in range(3):
        clock.kill_at = clock.moment + draws.randrange(1, 60)
        with suppress(KilledError):
            run(sweep, disk, clock, draws)
    clock.kill_at = 0
    run(sweep, disk, clock, draws)


def ends(disk):
    """Status, last step and steps of evaluations of each trial."""
    return [(one.status, one.last_step, [each.step for each in one.evaluations]) for one in disk]


def new_disk():
    return [Journaled(number) for number in range(8)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of a rung without a number
@pytest.mark.parametrize("kind", STOPPING)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_killed_sweep_stops_the_trials_that_an_unbroken_one_stops(kind, mode):
    all_ends = set()
    for seed in range(40):
        sweep = sweep_of(fixed=FIXED, scheduler=STOPPING[kind], mode=mode, seed=seed)
        unbroken = new_disk()
        session(sweep, unbroken, Clock(), random.Random(0))
        disk = new_disk()
        killed(session, sweep, disk, random.Random(seed))
        assert ends(disk) == ends(unbroken), (seed, ends(disk), ends(unbroken))
        all_ends |= {status for status, _, _ in ends(unbroken)}
    assert all_ends == {"finished", "stopped", "failed"}


def test_concurrent_trials_keep_the_decisions_that_were_made():
    """Three trials pass a rung in the order of their times, and not of their numbers."""
    sweep = sweep_of(fixed=FIXED, scheduler=STOPPING["asha"])
    past = [
        PastTrial(number, f"run-{number}", {}, "running", [TrialEvaluation(2, value, time)], last)
        for number, (value, time, last) in enumerate([(5.0, 30, 2), (1.0, 10, 3), (4.0, 20, 3)])
    ]
    stopped = []
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    for number, value in enumerate((5.0, 1.0, 4.0)):
        trial = FakeTrial(number)
        scheduler.on_trial_add(NO_TRIALS, trial)
        scheduler.on_trial_result(NO_TRIALS, trial, {"step": 2, METRIC: value})
    # the third has trained on after step 2, so it was let through there, whoever came first
    assert stopped == [0]


# ---- population-based training

INTERVAL = 4


class PopulationController:
    """Tune's controller for a population of which all trials train at once."""

    search_alg = None

    def __init__(self, trials):
        self.trials = trials
        self.waiting = set()

    def get_live_trials(self):
        return self.trials

    def pause_trial(self, trial, should_checkpoint):
        self.waiting.discard(trial.number)

    def _schedule_trial_train(self, trial):
        self.waiting.discard(trial.number)


def population_session(sweep, disk, clock, draws):
    """Train a population, whose trials take their steps in a drawn order."""
    scheduler = make_scheduler(sweep, STEPS, [one.past() for one in disk], [].append)
    takeovers = scheduler.open_takeovers()
    open_ones = [one for one in disk if one.status != "finished"]
    trials = []
    for one in open_ones:
        values = one.takeovers[-1].values if one.takeovers else one.values
        latest = {"number": one.number, "values": values}
        trials.append(FakeTrial(**takeovers.get(one.number, latest)))
    controller = PopulationController(trials)
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    clock.tick()
    reported = set()
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


def new_population(sweep):
    return [Journaled(number, values) for number, values in enumerate(enumerate_trials(sweep))]


def test_a_killed_population_takes_over_what_an_unbroken_one_takes_over():
    num_taken = 0
    for seed in range(40):
        pbt = {"kind": "pbt", "interval": INTERVAL}
        sweep = sweep_of(LR, fixed=FIXED, scheduler=pbt, trials=5, seed=seed)
        unbroken = new_population(sweep)
        population_session(sweep, unbroken, Clock(), random.Random(0))
        disk = new_population(sweep)
        killed(population_session, sweep, disk, random.Random(seed))
        assert [one.takeovers for one in disk] == [one.takeovers for one in unbroken], seed
        assert ends(disk) == ends(unbroken)
        num_taken += sum(len(one.takeovers) for one in unbroken)
    assert num_taken == 40 * 2 * 2  # two perturbations, at which two of five are replaced


def test_a_perturbation_waits_for_a_trial_that_has_not_begun():
    ready = PastTrial(0, "a", {}, "running", [TrialEvaluation(4, 1.0, 1)], 4, STEPS)
    for status, step in (("waiting", 0), ("failed", INTERVAL)):
        past = [ready, PastTrial(1, "b", {}, status)]
        assert last_generation(past, INTERVAL, STEPS).step == step


# ---- Optuna

SPACE = {
    **LR,
    "model.width": {"kind": "choice", "values": [128, 160]},
    "model.num_heads": {"kind": "choice", "values": [4, 5]},  # 128 is no multiple of 5
}


def proposals(sweep, draws):
    """All trials of a sweep, one after another, with their results; killed where `draws` says."""

    def killed_or_not(one):
        return Session(sweep, one.trials()) if draws and draws.random() < 0.3 else one

    one = Session(sweep)
    while True:
        asked = one.ask()
        if asked is None:
            return one.trials()
        after = killed_or_not(one)
        if after is one:
            tune_id, trial = asked
            value = abs(trial.values["optimizer.lr"] - 0.01) * trial.values["model.num_heads"]
            one.tell(tune_id, value, status="finished" if trial.number % 4 else "stopped")
            after = killed_or_not(one)
        one = after


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
