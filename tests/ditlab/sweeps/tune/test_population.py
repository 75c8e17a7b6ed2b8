"""Population-based training in step, its turns made by hand."""

import itertools
import random
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.errors import UserError
from ditlab.spec.sweep.axes import Choice, Integer, LogUniform, Uniform
from ditlab.spec.sweep.space import enumerate_trials, experiment_for
from ditlab.sweeps.tune.population import fitting
from ditlab.sweeps.tune.schedulers import make_scheduler
from support.sweeps import METRIC, sweep_of

SPACE = {
    "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "schedule.warmup": {"kind": "int", "low": 0, "high": 60, "step": 10},
    "training.ema.decay": {"kind": "uniform", "low": 0.5, "high": 0.99},
    "training.clip.max_norm": {"kind": "choice", "values": [0.5, 1.0, 2.0]},
}


class FakeTrial:
    """As much of Tune's trial as the scheduler asks for."""

    def __init__(self, number, values):
        self.trial_id, self.experiment_tag = f"id-{number}", ""
        self.config = {"trial": {"number": number, "run_id": f"run-{number}", "values": values}}
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )
        self.is_over = False

    @property
    def number(self):
        return self.config["trial"]["number"]

    @property
    def told(self):
        return self.config["trial"]

    def set_config(self, config):
        self.config = config

    def is_finished(self):
        return self.is_over


class Party:
    """A population and the controller that it is told by."""

    search_alg = None

    def __init__(self, seed=0, trials=8, quantile=0.25, resample=0.25, mode="min", interval=10):
        settings = {"kind": "pbt", "interval": interval, "quantile": quantile, "resample": resample}
        fixed = {"training.steps": 100_000, "evaluation.every": 10, "schedule.kind": "warmup_cosine"}
        self.told_to_stop: list[int] = []
        self.sweep = sweep_of(SPACE, fixed=fixed, scheduler=settings, trials=trials, seed=seed, mode=mode)
        self.scheduler = make_scheduler(self.sweep, 100_000, [], self.told_to_stop.append)
        self.trials = [FakeTrial(number, values) for number, values in enumerate(enumerate_trials(self.sweep))]
        self.went_on, self.paused = [], []
        for trial in self.trials:
            self.scheduler.on_trial_add(self, trial)

    def get_live_trials(self):
        return [trial for trial in self.trials if not trial.is_over]

    def pause_trial(self, trial, should_checkpoint):
        assert not should_checkpoint
        self.paused.append(trial.number)

    def _schedule_trial_train(self, trial):
        self.went_on.append(trial.number)

    def report(self, number, step, value):
        result = {"step": step} if value is None else {"step": step, METRIC: value}
        return self.scheduler.on_trial_result(self, self.trials[number], result)

    def turn(self, step, values, order=None):
        """All live trials report; returns (went on, were taken elsewhere)."""
        self.went_on, self.paused = [], []
        live = [trial.number for trial in self.get_live_trials()]
        for number in live if order is None else order:
            assert self.report(number, step, values[number]) == TrialScheduler.NOOP
        return self.went_on, self.paused

    def values(self):
        return [trial.told["values"] for trial in self.trials]


def test_nobody_goes_on_before_all_are_there():
    party = Party()
    for number in range(7):
        assert party.report(number, 10, float(number)) == TrialScheduler.NOOP
        assert not party.went_on and not party.paused
    party.report(7, 10, 7.0)
    assert sorted(party.went_on + party.paused) == list(range(8))


def test_between_turns_a_trial_goes_on_by_itself():
    party = Party()
    assert party.report(0, 5, 1.0) == TrialScheduler.CONTINUE
    party.turn(10, [float(number) for number in range(8)])
    assert party.report(0, 15, 1.0) == TrialScheduler.CONTINUE


@pytest.mark.parametrize(("mode", "worst", "best"), [("min", {6, 7}, {0, 1}), ("max", {0, 1}, {6, 7})])
def test_the_worst_take_over_the_best_and_stay_themselves(mode, worst, best):
    party = Party(mode=mode)
    before = party.values()
    went_on, paused = party.turn(10, [float(number) for number in range(8)])
    assert set(paused) == worst and set(went_on) == set(range(8)) - worst
    for trial in party.trials:
        told = trial.told
        assert told["run_id"] == f"run-{trial.number}"
        if trial.number in worst:
            assert told["origin"]["run_id"] in {f"run-{number}" for number in best} and told["origin"]["step"] == 10
            donor = before[int(told["origin"]["run_id"].removeprefix("run-"))]
            assert told["values"] != donor and list(told["values"]) == list(donor)
        else:
            assert "origin" not in told and told["values"] == before[trial.number]
    keys = {party.trials[number].told["origin"]["key"] for number in worst}
    assert len(keys) == 2


def test_values_stay_inside_their_axes():
    party = Party(trials=6, quantile=0.5, resample=0.1)
    rng, seen = random.Random(0), []
    for turn in range(1, 1001):
        party.turn(10 * turn, [rng.random() for _ in range(6)])
        seen += party.values()
    axes = party.sweep.space
    for path in ("optimizer.lr", "training.ema.decay"):
        assert all(axes[path].low <= values[path] <= axes[path].high for values in seen)
        assert len({values[path] for values in seen}) > 500
    for path in ("schedule.warmup", "training.clip.max_norm"):
        assert {values[path] for values in seen} == set(axes[path].listed())
    assert all(type(values["schedule.warmup"]) is int for values in seen)
    assert all(experiment_for(party.sweep, values) for values in party.values())


def test_values_that_make_no_experiment_stay_the_donors(monkeypatch):
    def refuse(sweep, values):
        raise UserError("they do not fit each other")

    monkeypatch.setattr("ditlab.sweeps.tune.population.experiment_for", refuse)
    party = Party()
    _, paused = party.turn(10, [float(number) for number in range(8)])
    for told in (party.trials[number].told for number in paused):
        assert told["values"] == party.trials[int(told["origin"]["run_id"].removeprefix("run-"))].told["values"]


def test_equal_seeds_decide_equally_whoever_reports_first():
    def decisions(seed, shuffle):
        party, metrics, order = Party(seed=seed), random.Random(5), list(range(8))
        told = []
        for turn in range(1, 30):
            shuffle.shuffle(order)
            random.random()  # other threads use the global generator too
            went_on, paused = party.turn(10 * turn, [metrics.random() for _ in range(8)], order)
            told.append(
                (went_on, paused, party.values(), [t.told.get("origin", {}).get("run_id") for t in party.trials])
            )
        return told

    one, two = decisions(3, random.Random(1)), decisions(3, random.Random(2))
    assert one == two
    assert one != decisions(4, random.Random(1))


def test_a_trial_that_ends_lets_the_others_go_on():
    for end in ("on_trial_complete", "on_trial_error", "on_trial_remove"):
        party = Party()
        for number in range(7):
            party.report(number, 10, float(number))
        result = [{"step": 10, "done": True, "status": "failed"}] if end == "on_trial_complete" else []
        getattr(party.scheduler, end)(party, party.trials[7], *result)  # Tune calls it live still
        party.trials[7].is_over = True
        assert sorted(party.went_on + party.paused) == list(range(7))
        assert "origin" not in party.trials[7].told


def test_the_weights_of_a_trial_that_has_ended_are_not_taken_over():
    party = Party()
    party.turn(10, [float(number) for number in range(8)])
    party.scheduler.on_trial_complete(
        party, party.trials[0], {"step": 12, METRIC: 0.0, "done": True, "status": "finished"}
    )
    party.trials[0].is_over = True
    _, paused = party.turn(20, [float(number) for number in range(8)])
    donors = {party.trials[number].told["origin"]["run_id"] for number in paused}
    assert paused and donors <= {"run-1", "run-2"}


def test_all_but_one_may_end():
    party = Party()
    for number in range(1, 8):
        party.scheduler.on_trial_error(party, party.trials[number])
        party.trials[number].is_over = True
    assert party.turn(10, [1.0] * 8) == ([0], [])


def test_a_trial_whose_metric_is_nan_takes_a_better_one_over():
    for mode, best in (("min", {"run-1", "run-2"}), ("max", {"run-6", "run-7"})):
        party = Party(mode=mode)
        went_on, paused = party.turn(10, [float("nan"), *map(float, range(1, 8))])
        assert 0 in paused and len(paused) == 2 and sorted(went_on + paused) == list(range(8))
        assert party.trials[0].told["origin"]["run_id"] in best
        _, paused = party.turn(20, list(map(float, range(8))))
        assert (0 in paused) == (mode == "max")  # what it reports next counts again


def test_of_several_that_are_nan_as_many_as_the_quantile_says_begin_anew():
    party = Party()
    _, paused = party.turn(10, [float("nan")] * 5 + [5.0, 6.0, 7.0])
    assert len(paused) == 2 and set(paused) <= set(range(5))
    assert {party.trials[number].told["origin"]["run_id"] for number in paused} <= {"run-5", "run-6"}


@pytest.mark.parametrize("ended", ["on_trial_complete", "on_trial_error"])
def test_a_trial_that_tune_knows_to_be_over_is_not_waited_for(ended):
    """Tune says that it is over before the scheduler hears how, and may call it live for longer."""
    party = Party(trials=4)
    party.get_live_trials = lambda: party.trials
    for number in (0, 1):
        party.report(number, 10, float(number))
    party.trials[3].is_over = True
    party.report(2, 10, 2.0)
    assert sorted(party.went_on + party.paused) == [0, 1, 2]
    party.went_on, party.paused = [], []
    result = [{"step": 10, "done": True, "status": "failed"}] if ended == "on_trial_complete" else []
    getattr(party.scheduler, ended)(party, party.trials[3], *result)
    assert not party.went_on and not party.paused
    assert party.turn(20, [0.0, 1.0, 2.0], order=[0, 1, 2])[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_no_number_stops_nobody(bad):
    party = Party()
    for turn in range(1, 20):
        went_on, paused = party.turn(10 * turn, [bad, *map(float, range(1, 8))])
        assert sorted(went_on + paused) == list(range(8))
        if bad != float("-inf"):
            assert all(party.trials[number].told["origin"]["run_id"] != "run-0" for number in paused)


def test_a_trial_without_the_metric_goes_on_and_the_others_come_after_it():
    party = Party(trials=4)
    assert party.report(0, 10, None) == TrialScheduler.CONTINUE
    for number in (1, 2, 3):
        party.report(number, 10, float(number))
    assert not party.went_on
    party.report(0, 20, 0.0)
    assert party.went_on == [1, 2, 3] and not party.paused
    party.turn(20, [0.0, 1.0, 2.0, 3.0], order=[1, 2, 3])
    assert sorted(party.went_on + party.paused) == [0, 1, 2, 3] and party.paused == [3]


def test_a_trial_that_lost_its_process_while_it_waited_goes_on_once():
    party = Party(trials=4)
    party.report(1, 10, 1.0)
    party.report(1, 20, 1.0)  # it came back from its checkpoint, and on to the next evaluation
    for number in (0, 2, 3):
        party.report(number, 10, float(number))
    assert sorted(party.went_on) == [0, 2, 3]
    party.turn(20, [0.0, 1.0, 2.0, 3.0], order=[3, 2, 0])
    assert sorted(party.went_on + party.paused) == [0, 1, 2, 3]


@pytest.mark.parametrize("interval", [10, 20, 30])
@pytest.mark.parametrize("seed", range(5))
def test_a_second_session_compares_at_one_step_again(interval, seed):
    """The first one was cut short when some had come further than others."""
    party, rng = Party(trials=6, interval=interval), random.Random(seed)
    at = {number: 10 * rng.randrange(1 + 2 * interval // 10) for number in range(6)}
    training, turns = set(at), []
    while min(at.values()) < 400:
        number = rng.choice(sorted(training))
        training.remove(number)
        at[number] += 10
        party.went_on, party.paused = [], []
        if party.report(number, at[number], rng.random()) == TrialScheduler.CONTINUE:
            training.add(number)
        training |= {*party.went_on, *party.paused}
        if party.paused:
            assert len(set(at.values())) == 1
            turns.append(at[number])
    assert len(turns) > 300 / interval - 3
    assert {after - before for before, after in itertools.pairwise(turns)} == {interval}


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        (Uniform(low=0.1, high=0.9), 1.2, 0.9), (Uniform(low=-1.0, high=1.0), -1.2, -1.0),
        (LogUniform(low=1e-4, high=1e-2), 1e-5, 1e-4), (LogUniform(low=1e-4, high=1e-2), 3e-3, 3e-3),
        (Integer(low=1, high=10, step=3), 6, 7), (Integer(low=1, high=10, step=3), 99, 10),
        (Integer(low=1, high=10, step=3), -4, 1), (Integer(low=-4, high=4, step=2), -1.2, -2),
        (Choice(values=("a", None)), None, None),
    ],
)  # fmt: skip
def test_fitting(axis, value, expected):
    fitted = fitting(axis, value)
    assert fitted == expected and type(fitted) is type(expected)
