"""Synchronous population-based training, with trials whose reports are made by hand."""

import random

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.errors import UserError
from ditlab.spec.sweep_axes import Choice, Integer, LogUniform, Uniform
from ditlab.spec.sweep_space import enumerate_trials, experiment_for
from ditlab.sweeps.search import make_scheduler, nearest_value
from support.sweeps import LR, METRIC, FakeTrial, sweep_of

SPACE = {
    **LR,
    "schedule.warmup": {"kind": "int", "low": 0, "high": 60, "step": 10},
    "training.ema.decay": {"kind": "uniform", "low": 0.5, "high": 0.99},
    "training.clip.max_norm": {"kind": "choice", "values": [0.5, 1.0, 2.0]},
}
LADDER = [float(number) for number in range(8)]
"""Metrics of eight trials."""


class FakeController:
    """A population, and Tune's controller as far as it calls that."""

    search_alg = None

    def __init__(self, seed=0, trials=8, quantile=0.25, resample=0.25, mode="min"):
        settings = {"kind": "pbt", "interval": 10, "quantile": quantile, "resample": resample}
        fixed = {"evaluation.every": 10, "schedule.kind": "warmup_cosine", "training.steps": 10**5}
        self.sweep = sweep_of(
            SPACE, fixed=fixed, scheduler=settings, trials=trials, seed=seed, mode=mode
        )
        self.scheduler = make_scheduler(self.sweep, 100_000, [], [].append)
        self.trials = [
            FakeTrial(number, values=values)
            for number, values in enumerate(enumerate_trials(self.sweep))
        ]
        self.continued, self.paused = [], []
        for trial in self.trials:
            self.scheduler.on_trial_add(self, trial)

    def get_live_trials(self):
        return [trial for trial in self.trials if not trial.has_ended]

    def pause_trial(self, trial, should_checkpoint):
        assert not should_checkpoint
        self.paused.append(trial.number)

    def _schedule_trial_train(self, trial):
        self.continued.append(trial.number)

    def report(self, number, step, value):
        result = {"step": step} if value is None else {"step": step, METRIC: value}
        return self.scheduler.on_trial_result(self, self.trials[number], result)

    def perturb(self, step, values, order=None):
        """Let all live trials report; return (trials that continued, trials that took another one
        over).
        """
        self.continued, self.paused = [], []
        live = [trial.number for trial in self.get_live_trials()]
        for number in live if order is None else order:
            assert self.report(number, step, values[number]) == TrialScheduler.NOOP
        return self.continued, self.paused

    def values(self):
        return [trial.config["trial"]["values"] for trial in self.trials]

    def donor(self, number):
        """Number of the trial that this one takes over."""
        return int(self.takeover(number)["run_id"].removeprefix("run-"))

    def takeover(self, number):
        return self.trials[number].config["trial"].get("takeover")

    def lose(self, number):
        """End a trial by an error."""
        self.scheduler.on_trial_error(self, self.trials[number])
        self.trials[number].has_ended = True


@pytest.mark.parametrize(
    ("mode", "worst", "best"), [("min", {6, 7}, {0, 1}), ("max", {0, 1}, {6, 7})]
)
def test_worst_trials_take_over_the_best_and_keep_their_runs(mode, worst, best):
    tune = FakeController(mode=mode)
    before = tune.values()
    continued, paused = tune.perturb(10, LADDER)
    assert set(paused) == worst and set(continued) == set(range(8)) - worst
    for number, values in enumerate(tune.values()):
        assert tune.trials[number].config["trial"]["run_id"] == f"run-{number}"
        if number in worst:
            donor = tune.donor(number)
            assert donor in best and tune.takeover(number)["step"] == 10
            assert values != before[donor] and list(values) == list(SPACE)
        else:
            assert tune.takeover(number) is None and values == before[number]
    tune.perturb(20, LADDER[::-1])
    taken = [tune.takeover(number) for number in range(8)]
    assert len({each["key"] for each in taken if each}) == 2  # a trial takes over once at a step


@pytest.mark.slow
def test_values_stay_inside_their_axes():
    tune = FakeController(trials=6, quantile=0.5, resample=0.1)
    rng, seen = random.Random(0), []
    for turn in range(1, 301):
        tune.perturb(10 * turn, [rng.random() for _ in range(6)])
        seen += tune.values()
    for path, axis in tune.sweep.space.items():
        found = {values[path] for values in seen}
        if axis.listed():
            assert found == set(axis.listed())
        else:
            assert axis.low <= min(found) <= max(found) <= axis.high and len(found) > 150
    assert all(type(values["schedule.warmup"]) is int for values in seen)
    assert all(experiment_for(tune.sweep, values) for values in tune.values())


def test_invalid_values_stay_the_donors(monkeypatch):
    def refuse(sweep, values):
        raise UserError("they do not fit each other")

    monkeypatch.setattr("ditlab.sweeps.search.experiment_for", refuse)
    tune = FakeController()
    before = tune.values()
    _, paused = tune.perturb(10, LADDER)
    for number in paused:
        assert tune.values()[number] == before[tune.donor(number)]


def test_decisions_depend_on_the_seed_and_not_on_the_order_of_reports():
    def decisions(seed, shuffle):
        tune = FakeController(seed=seed)
        metrics = random.Random(5)
        order = list(range(8))
        decided = []
        for turn in range(1, 30):
            shuffle.shuffle(order)
            random.random()  # other threads use the global generator too
            found = tune.perturb(10 * turn, [metrics.random() for _ in range(8)], order)
            donors = [tune.donor(number) for number in found[1]]
            decided.append((found, tune.values(), donors))
        return decided

    one, two = decisions(3, random.Random(1)), decisions(3, random.Random(2))
    assert one == two
    assert one != decisions(4, random.Random(1))


def test_end_of_a_trial_lets_the_others_continue():
    tune = FakeController()
    for number in range(7):
        tune.report(number, 10, float(number))
    tune.lose(7)  # Tune still lists it as live
    assert sorted(tune.continued + tune.paused) == list(range(7))
    assert tune.takeover(7) is None


def test_ended_trial_is_no_donor():
    tune = FakeController()
    tune.perturb(10, LADDER)
    end = {"step": 12, METRIC: 0.0, "done": True, "status": "finished"}
    tune.scheduler.on_trial_complete(tune, tune.trials[0], end)
    tune.trials[0].has_ended = True
    _, paused = tune.perturb(20, LADDER)
    assert paused and {tune.donor(number) for number in paused} <= {1, 2}


def test_last_trial_continues_alone():
    tune = FakeController()
    for number in range(1, 8):
        tune.lose(number)
    assert tune.perturb(10, LADDER) == ([0], [])


def test_trial_with_a_nan_metric_takes_over_a_better_one():
    for mode, best in (("min", {1, 2}), ("max", {6, 7})):
        tune = FakeController(mode=mode)
        continued, paused = tune.perturb(10, [float("nan"), *LADDER[1:]])
        assert 0 in paused and len(paused) == 2 and sorted(continued + paused) == list(range(8))
        assert tune.donor(0) in best
        _, paused = tune.perturb(20, LADDER)
        assert (0 in paused) == (mode == "max")  # its next report counts again


def test_no_more_nan_trials_than_the_quantile_take_over():
    tune = FakeController()
    _, paused = tune.perturb(10, [float("nan")] * 5 + LADDER[5:])
    assert len(paused) == 2 and set(paused) <= set(range(5))
    assert {tune.donor(number) for number in paused} <= {5, 6}


def test_finished_trial_is_not_waited_for():
    """Tune marks a trial finished before it calls the scheduler, and may list it as live for
    longer.
    """
    tune = FakeController(trials=4)
    tune.get_live_trials = lambda: tune.trials
    for number in (0, 1):
        tune.report(number, 10, float(number))
    tune.trials[3].has_ended = True
    tune.report(2, 10, 2.0)
    assert sorted(tune.continued + tune.paused) == [0, 1, 2]
    tune.continued, tune.paused = [], []
    tune.scheduler.on_trial_complete(tune, tune.trials[3], {"step": 10, "status": "finished"})
    assert not tune.continued and not tune.paused
    assert tune.perturb(20, LADDER, order=[0, 1, 2])[0]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf")])
def test_metric_that_is_not_finite_blocks_no_trial(bad):
    tune = FakeController()
    for turn in range(1, 20):
        continued, paused = tune.perturb(10 * turn, [bad, *LADDER[1:]])
        assert sorted(continued + paused) == list(range(8))
        assert bad < 0 or 0 not in map(tune.donor, paused)


def test_trial_without_the_metric_continues_and_the_others_catch_up():
    tune = FakeController(trials=4)
    assert tune.report(0, 10, None) == TrialScheduler.CONTINUE
    for number in (1, 2, 3):
        tune.report(number, 10, float(number))
    assert not tune.continued
    tune.report(0, 20, 0.0)
    assert tune.continued == [1, 2, 3] and not tune.paused
    tune.perturb(20, LADDER, order=[1, 2, 3])
    assert sorted(tune.continued + tune.paused) == [0, 1, 2, 3] and tune.paused == [3]


def test_trial_that_lost_its_process_while_waiting_continues_once():
    tune = FakeController(trials=4)
    tune.report(1, 10, 1.0)
    tune.report(1, 20, 1.0)  # it was restarted from its checkpoint and reached the next evaluation
    for number in (0, 2, 3):
        tune.report(number, 10, float(number))
    assert sorted(tune.continued) == [0, 2, 3]
    tune.perturb(20, LADDER, order=[3, 2, 0])
    assert sorted(tune.continued + tune.paused) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        (Uniform(low=0.1, high=0.9), 1.2, 0.9),
        (LogUniform(low=1e-4, high=1e-2), 1e-5, 1e-4),
        (Integer(low=1, high=10, step=3), 6, 7),
        (Integer(low=1, high=10, step=3), 99, 10),
        (Integer(low=1, high=10, step=3), -4, 1),
        (Choice(values=("a", None)), None, None),
    ],
)
def test_fitting(axis, value, expected):
    fitted = nearest_value(axis, value)
    assert fitted == expected and type(fitted) is type(expected)
