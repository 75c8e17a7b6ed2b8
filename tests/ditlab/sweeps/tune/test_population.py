"""Synchronous population-based training, with trials whose reports are made by hand."""

import itertools
import random
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.errors import UserError
from ditlab.spec.sweep_axes import Choice, Integer, LogUniform, Uniform
from ditlab.spec.sweep_space import enumerate_trials, experiment_for
from ditlab.sweeps.search import make_scheduler, nearest_value
from support.sweeps import METRIC, sweep_of

SPACE = {
    "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "schedule.warmup": {"kind": "int", "low": 0, "high": 60, "step": 10},
    "training.ema.decay": {"kind": "uniform", "low": 0.5, "high": 0.99},
    "training.clip.max_norm": {"kind": "choice", "values": [0.5, 1.0, 2.0]},
}


class FakeTrial:
    """The part of Tune's trial that the scheduler reads."""

    def __init__(self, number, values):
        self.trial_id, self.experiment_tag = f"id-{number}", ""
        self.config = {"trial": {"number": number, "run_id": f"run-{number}", "values": values}}
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )
        self.has_ended = False

    @property
    def number(self):
        return self.config["trial"]["number"]

    @property
    def assigned(self):
        return self.config["trial"]

    def set_config(self, config):
        self.config = config

    def is_finished(self):
        return self.has_ended


class FakeController:
    """A population, and Tune's controller as far as it calls that."""

    search_alg = None

    def __init__(self, seed=0, trials=8, quantile=0.25, resample=0.25, mode="min", interval=10):
        settings = {"kind": "pbt", "interval": interval, "quantile": quantile, "resample": resample}
        fixed = {
            "training.steps": 100_000,
            "evaluation.every": 10,
            "schedule.kind": "warmup_cosine",
        }
        self.stopped: list[int] = []
        self.sweep = sweep_of(
            SPACE, fixed=fixed, scheduler=settings, trials=trials, seed=seed, mode=mode
        )
        self.scheduler = make_scheduler(self.sweep, 100_000, [], self.stopped.append)
        self.trials = [
            FakeTrial(number, values) for number, values in enumerate(enumerate_trials(self.sweep))
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
        return [trial.assigned["values"] for trial in self.trials]


def test_no_trial_continues_before_all_have_reported():
    tune = FakeController()
    for number in range(7):
        assert tune.report(number, 10, float(number)) == TrialScheduler.NOOP
        assert not tune.continued and not tune.paused
    tune.report(7, 10, 7.0)
    assert sorted(tune.continued + tune.paused) == list(range(8))


def test_trial_continues_between_perturbations():
    tune = FakeController()
    assert tune.report(0, 5, 1.0) == TrialScheduler.CONTINUE
    tune.perturb(10, [float(number) for number in range(8)])
    assert tune.report(0, 15, 1.0) == TrialScheduler.CONTINUE


@pytest.mark.parametrize(
    ("mode", "worst", "best"), [("min", {6, 7}, {0, 1}), ("max", {0, 1}, {6, 7})]
)
def test_worst_trials_take_over_the_best_and_keep_their_runs(mode, worst, best):
    tune = FakeController(mode=mode)
    before = tune.values()
    continued, paused = tune.perturb(10, [float(number) for number in range(8)])
    assert set(paused) == worst and set(continued) == set(range(8)) - worst
    for trial in tune.trials:
        assigned = trial.assigned
        assert assigned["run_id"] == f"run-{trial.number}"
        if trial.number in worst:
            assert (
                assigned["takeover"]["run_id"] in {f"run-{number}" for number in best}
                and assigned["takeover"]["step"] == 10
            )
            donor = before[int(assigned["takeover"]["run_id"].removeprefix("run-"))]
            assert assigned["values"] != donor and list(assigned["values"]) == list(donor)
        else:
            assert "takeover" not in assigned and assigned["values"] == before[trial.number]
    keys = {tune.trials[number].assigned["takeover"]["key"] for number in worst}
    assert len(keys) == 2


def test_values_stay_inside_their_axes():
    tune = FakeController(trials=6, quantile=0.5, resample=0.1)
    rng, seen = random.Random(0), []
    for turn in range(1, 301):
        tune.perturb(10 * turn, [rng.random() for _ in range(6)])
        seen += tune.values()
    axes = tune.sweep.space
    for path in ("optimizer.lr", "training.ema.decay"):
        assert all(axes[path].low <= values[path] <= axes[path].high for values in seen)
        assert len({values[path] for values in seen}) > 150
    for path in ("schedule.warmup", "training.clip.max_norm"):
        assert {values[path] for values in seen} == set(axes[path].listed())
    assert all(type(values["schedule.warmup"]) is int for values in seen)
    assert all(experiment_for(tune.sweep, values) for values in tune.values())


def test_invalid_values_stay_the_donors(monkeypatch):
    def refuse(sweep, values):
        raise UserError("they do not fit each other")

    monkeypatch.setattr("ditlab.sweeps.search.experiment_for", refuse)
    tune = FakeController()
    _, paused = tune.perturb(10, [float(number) for number in range(8)])
    for assigned in (tune.trials[number].assigned for number in paused):
        assert (
            assigned["values"]
            == tune.trials[int(assigned["takeover"]["run_id"].removeprefix("run-"))].assigned[
                "values"
            ]
        )


def test_decisions_depend_on_the_seed_and_not_on_the_order_of_reports():
    def decisions(seed, shuffle):
        tune, metrics, order = FakeController(seed=seed), random.Random(5), list(range(8))
        decided = []
        for turn in range(1, 30):
            shuffle.shuffle(order)
            random.random()  # other threads use the global generator too
            continued, paused = tune.perturb(10 * turn, [metrics.random() for _ in range(8)], order)
            decided.append(
                (
                    continued,
                    paused,
                    tune.values(),
                    [t.assigned.get("takeover", {}).get("run_id") for t in tune.trials],
                )
            )
        return decided

    one, two = decisions(3, random.Random(1)), decisions(3, random.Random(2))
    assert one == two
    assert one != decisions(4, random.Random(1))


def test_end_of_a_trial_lets_the_others_continue():
    for end in ("on_trial_complete", "on_trial_error", "on_trial_remove"):
        tune = FakeController()
        for number in range(7):
            tune.report(number, 10, float(number))
        result = (
            [{"step": 10, "done": True, "status": "failed"}] if end == "on_trial_complete" else []
        )
        getattr(tune.scheduler, end)(tune, tune.trials[7], *result)  # Tune still lists it as live
        tune.trials[7].has_ended = True
        assert sorted(tune.continued + tune.paused) == list(range(7))
        assert "takeover" not in tune.trials[7].assigned


def test_ended_trial_is_no_donor():
    tune = FakeController()
    tune.perturb(10, [float(number) for number in range(8)])
    tune.scheduler.on_trial_complete(
        tune, tune.trials[0], {"step": 12, METRIC: 0.0, "done": True, "status": "finished"}
    )
    tune.trials[0].has_ended = True
    _, paused = tune.perturb(20, [float(number) for number in range(8)])
    donors = {tune.trials[number].assigned["takeover"]["run_id"] for number in paused}
    assert paused and donors <= {"run-1", "run-2"}


def test_last_trial_continues_alone():
    tune = FakeController()
    for number in range(1, 8):
        tune.scheduler.on_trial_error(tune, tune.trials[number])
        tune.trials[number].has_ended = True
    assert tune.perturb(10, [1.0] * 8) == ([0], [])


def test_trial_with_a_nan_metric_takes_over_a_better_one():
    for mode, best in (("min", {"run-1", "run-2"}), ("max", {"run-6", "run-7"})):
        tune = FakeController(mode=mode)
        continued, paused = tune.perturb(10, [float("nan"), *map(float, range(1, 8))])
        assert 0 in paused and len(paused) == 2 and sorted(continued + paused) == list(range(8))
        assert tune.trials[0].assigned["takeover"]["run_id"] in best
        _, paused = tune.perturb(20, list(map(float, range(8))))
        assert (0 in paused) == (mode == "max")  # its next report counts again


def test_no_more_nan_trials_than_the_quantile_take_over():
    tune = FakeController()
    _, paused = tune.perturb(10, [float("nan")] * 5 + [5.0, 6.0, 7.0])
    assert len(paused) == 2 and set(paused) <= set(range(5))
    assert {tune.trials[number].assigned["takeover"]["run_id"] for number in paused} <= {
        "run-5",
        "run-6",
    }


@pytest.mark.parametrize("ended", ["on_trial_complete", "on_trial_error"])
def test_finished_trial_is_not_waited_for(ended):
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
    result = (
        [{"step": 10, "done": True, "status": "failed"}] if ended == "on_trial_complete" else []
    )
    getattr(tune.scheduler, ended)(tune, tune.trials[3], *result)
    assert not tune.continued and not tune.paused
    assert tune.perturb(20, [0.0, 1.0, 2.0], order=[0, 1, 2])[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_metric_that_is_not_finite_blocks_no_trial(bad):
    tune = FakeController()
    for turn in range(1, 20):
        continued, paused = tune.perturb(10 * turn, [bad, *map(float, range(1, 8))])
        assert sorted(continued + paused) == list(range(8))
        if bad != float("-inf"):
            assert all(
                tune.trials[number].assigned["takeover"]["run_id"] != "run-0" for number in paused
            )


def test_trial_without_the_metric_continues_and_the_others_catch_up():
    tune = FakeController(trials=4)
    assert tune.report(0, 10, None) == TrialScheduler.CONTINUE
    for number in (1, 2, 3):
        tune.report(number, 10, float(number))
    assert not tune.continued
    tune.report(0, 20, 0.0)
    assert tune.continued == [1, 2, 3] and not tune.paused
    tune.perturb(20, [0.0, 1.0, 2.0, 3.0], order=[1, 2, 3])
    assert sorted(tune.continued + tune.paused) == [0, 1, 2, 3] and tune.paused == [3]


def test_trial_that_lost_its_process_while_waiting_continues_once():
    tune = FakeController(trials=4)
    tune.report(1, 10, 1.0)
    tune.report(1, 20, 1.0)  # it was restarted from its checkpoint and reached the next evaluation
    for number in (0, 2, 3):
        tune.report(number, 10, float(number))
    assert sorted(tune.continued) == [0, 2, 3]
    tune.perturb(20, [0.0, 1.0, 2.0, 3.0], order=[3, 2, 0])
    assert sorted(tune.continued + tune.paused) == [0, 1, 2, 3]


@pytest.mark.parametrize("interval", [10, 20, 30])
@pytest.mark.parametrize("seed", range(5))
def test_second_session_compares_at_equal_steps(interval, seed):
    """The first session was cut short when some trials were ahead of others."""
    tune, rng = FakeController(trials=6, interval=interval), random.Random(seed)
    at = {number: 10 * rng.randrange(1 + 2 * interval // 10) for number in range(6)}
    training, turns = set(at), []
    while min(at.values()) < 400:
        number = rng.choice(sorted(training))
        training.remove(number)
        at[number] += 10
        tune.continued, tune.paused = [], []
        if tune.report(number, at[number], rng.random()) == TrialScheduler.CONTINUE:
            training.add(number)
        training |= {*tune.continued, *tune.paused}
        if tune.paused:
            assert len(set(at.values())) == 1
            turns.append(at[number])
    assert len(turns) > 300 / interval - 3
    assert {after - before for before, after in itertools.pairwise(turns)} == {interval}


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        (Uniform(low=0.1, high=0.9), 1.2, 0.9),
        (Uniform(low=-1.0, high=1.0), -1.2, -1.0),
        (LogUniform(low=1e-4, high=1e-2), 1e-5, 1e-4),
        (LogUniform(low=1e-4, high=1e-2), 3e-3, 3e-3),
        (Integer(low=1, high=10, step=3), 6, 7),
        (Integer(low=1, high=10, step=3), 99, 10),
        (Integer(low=1, high=10, step=3), -4, 1),
        (Integer(low=-4, high=4, step=2), -1.2, -2),
        (Choice(values=("a", None)), None, None),
    ],
)
def test_fitting(axis, value, expected):
    fitted = nearest_value(axis, value)
    assert fitted == expected and type(fitted) is type(expected)
