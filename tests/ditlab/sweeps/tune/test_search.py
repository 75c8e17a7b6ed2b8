"""Search with Optuna, asked as Tune asks, in a first and a second session."""

import math
import statistics

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from ditlab.reports.sweep_records import Trial
from ditlab.spec.sweep_space import experiment_for
from ditlab.sweeps.search import OptunaTrials, index_of, make_study
from ditlab.sweeps.start import create_sweep, resume_sweep
from support.sweeps import METRIC, prepared, sweep_of, trial_run

SPACE = {
    "optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1},
    "schedule.kind": {"kind": "choice", "values": ["constant", "warmup_cosine"]},
    "schedule.warmup": {
        "kind": "int",
        "low": 0,
        "high": 4,
        "step": 2,
        "when": {"schedule.kind": "warmup_cosine"},
    },
    "objective.time": {
        "kind": "choice",
        "values": [{"kind": "uniform"}, {"kind": "logit_normal", "std": 1.0}],
    },
    "training.ema.decay": {"kind": "uniform", "low": 0.5, "high": 0.99},
}


def optuna_sweep(space=SPACE, trials=10, startup=3, **changes):
    search = {"kind": "optuna", "startup": startup}
    return sweep_of(space, search=search, trials=trials, **changes)


class Session:
    """One session of a sweep, with its ledger."""

    def __init__(self, sweep, past=()):
        self.sweep, self.past, self.ledger = sweep, list(past), list(past)
        self.search = OptunaTrials(sweep, past, self._plan)
        self._num_asked = 0

    def _plan(self, number, values, configuration, seed):
        self.ledger.append(
            Trial(number, f"run-{number}", dict(values), configuration=configuration, seed=seed)
        )
        return self.ledger[-1]

    def ask(self):
        """(Tune's id, the trial), or None when there are no more."""
        self._num_asked += 1
        tune_id = f"tune-{self._num_asked}"
        found = self.search.suggest(tune_id)
        return None if found == Searcher.FINISHED else (tune_id, Trial(**found["trial"]))

    def tell(self, tune_id, *values, step=6, status="finished"):
        result = {"step": step, **dict(zip(self.sweep.metrics, values, strict=True)), "done": True}
        self.search.on_trial_complete(tune_id, {**result, "status": status})

    def study(self):
        return self.search._study

    def states(self):
        return [trial.state for trial in self.study().trials]


def past_of(number, status, values, measured=(), metrics=(METRIC,)):
    return Trial(
        number,
        f"run-{number}",
        values,
        status,
        6,
        metrics=dict(zip(metrics, measured, strict=False)),
    )


def inside(space, values):
    for path, axis in space.items():
        if path in values:
            value = values[path]
            if axis["kind"] == "choice":
                assert value in axis["values"]
            else:
                assert axis["low"] <= value <= axis["high"]
    return True


def test_number_of_trials():
    session, found = Session(optuna_sweep(trials=10)), []
    while asked := session.ask():
        found.append(asked[1])
        session.tell(asked[0], float(len(found)))
    assert found == session.ledger and [trial.number for trial in found] == list(range(10))
    assert session.ask() is None
    assert session.states() == [TrialState.COMPLETE] * 10


PAIRS = {
    "model.width": {"kind": "choice", "values": [128, 160]},
    "model.num_heads": {"kind": "choice", "values": [4, 5]},
}


def test_only_values_that_make_a_valid_experiment_are_proposed():
    """128 is no multiple of 5."""
    session, found = Session(optuna_sweep(PAIRS, trials=20)), []
    while asked := session.ask():
        found.append(asked[1])
        assert (
            experiment_for(session.sweep, asked[1].values).model.width
            == asked[1].values["model.width"]
        )
        session.tell(asked[0], 1.0)
    assert [trial.number for trial in found] == list(range(20)) and session.ledger == found
    seen = {(trial.values["model.width"], trial.values["model.num_heads"]) for trial in found}
    assert seen == {(128, 4), (160, 4), (160, 5)}
    refused = [trial for trial in session.study().trials if trial.state != TrialState.COMPLETE]
    assert refused and all(
        trial.params == {"model.width": 0, "model.num_heads": 1} for trial in refused
    )
    assert session.states().count(TrialState.COMPLETE) == 20


def test_search_ends_where_no_values_make_a_valid_experiment():
    sweep = optuna_sweep(PAIRS, trials=20, startup=200)
    nothing = {
        path: axis.model_copy(update={"values": axis.values[place : place + 1]})
        for place, (path, axis) in enumerate(sweep.space.items())
    }
    session = Session(sweep.model_copy(update={"space": nothing}))
    assert session.ask() is None and session.ledger == []
    assert not session.study().best_trials and len(session.states()) == 100


def test_axis_exists_where_its_condition_holds():
    session, seen = Session(optuna_sweep(trials=40)), set()
    while asked := session.ask():
        values = asked[1].values
        assert inside(SPACE, values)
        assert ("schedule.warmup" in values) == (values["schedule.kind"] == "warmup_cosine")
        assert list(values) == [path for path in SPACE if path in values]
        seen.add(
            (
                values["schedule.kind"],
                values.get("schedule.warmup"),
                values["objective.time"]["kind"],
            )
        )
        session.tell(asked[0], values["optimizer.lr"])
    assert len(seen) > 4


def test_mappings_survive_a_second_session():
    session = Session(optuna_sweep(trials=20))
    kinds = {"uniform": {"kind": "uniform"}, "logit_normal": {"kind": "logit_normal", "std": 1.0}}
    first = [session.ask() for _ in range(10)]
    assert all(
        trial.values["objective.time"] == kinds[trial.values["objective.time"]["kind"]]
        for _, trial in first
    )
    past = [past_of(trial.number, "interrupted", trial.values) for _, trial in first]
    again = Session(session.sweep, past)
    assert [again.ask()[1] for _ in range(10)] == [trial for _, trial in first]


def test_index_distinguishes_true_from_one():
    axis = (
        optuna_sweep({"seed": {"kind": "choice", "values": [1, 0]}})
        .space["seed"]
        .model_copy(update={"values": (True, 1, False, 0, None)})
    )
    assert [index_of(axis, value) for value in axis.values] == [0, 1, 2, 3, 4]


def restarted(statuses, trials=12):
    """(trials of the first session with these statuses, the second session, its trials)."""
    first = Session(optuna_sweep(trials=trials))
    known = [first.ask()[1] for _ in statuses]
    past = [
        past_of(
            trial.number,
            status,
            trial.values,
            (float(trial.number),) if status in ("finished", "stopped") else (),
        )
        for trial, status in zip(known, statuses, strict=True)
    ]
    second, found = Session(first.sweep, past), []
    while asked := second.ask():
        found.append(asked[1])
        second.tell(asked[0], 1.0)
    return known, second, found


def test_second_session_resumes_unfinished_trials_first():
    statuses = ["finished", "interrupted", "failed", "running", "stopped", "waiting"]
    known, second, found = restarted(statuses)
    assert found[:3] == [known[1], known[3], known[5]]
    assert [trial.number for trial in found[3:]] == list(range(6, 12))
    assert sorted(trial.number for trial in second.ledger) == list(range(12))
    assert len({trial.run_id for trial in second.ledger}) == 12
    fresh = [tuple(map(str, trial.values.items())) for trial in second.ledger]
    assert len(set(fresh)) == 12  # no trial of the first session is drawn again


def test_second_session_holds_the_values_of_the_first():
    known, second, _ = restarted(["finished", "stopped", "failed", "finished"], trials=4)
    study = make_study(second.sweep, second.past)
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.state for trial in study.trials] == states
    assert study.trials[0].values == [0.0] and study.trials[3].values == [3.0]
    assert study.trials[1].intermediate_values == {6: 1.0}
    assert [trial.params["optimizer.lr"] for trial in study.trials] == [
        trial.values["optimizer.lr"] for trial in known
    ]


def test_past_trial_without_a_finite_value_counts_as_failed():
    sweep = optuna_sweep({"optimizer.lr": SPACE["optimizer.lr"]})
    for values in ((), (math.nan,), (math.inf,)):
        study = make_study(sweep, [past_of(0, "finished", {"optimizer.lr": 0.01}, values)])
        assert [trial.state for trial in study.trials] == [TrialState.FAIL]


def test_end_of_a_trial_is_reported():
    session = Session(optuna_sweep(trials=8))
    names = [session.ask()[0] for _ in range(8)]
    session.tell(names[0], 0.5)
    session.tell(names[1], 0.7, step=4, status="stopped")
    session.tell(names[2], 0.5, status="failed")
    session.tell(names[3], math.nan)
    session.search.on_trial_complete(names[4], None, error=True)
    session.search.on_trial_complete(names[5])
    # without a status
    session.search.on_trial_complete(names[6], {"step": 6, METRIC: 0.1, "done": True})
    session.tell(names[7], 0.1, status="interrupted")  # it is resumed in the next session
    fail = TrialState.FAIL
    ends = [
        TrialState.COMPLETE,
        TrialState.PRUNED,
        fail,
        fail,
        fail,
        fail,
        fail,
        TrialState.RUNNING,
    ]
    assert session.states() == ends
    assert session.study().trials[1].intermediate_values == {4: 0.7}
    assert session.study().best_value == 0.5
    session.search.on_trial_complete(
        names[0], None, error=True
    )  # a second report, or one of an unknown trial, changes nothing
    session.search.on_trial_complete("unknown", {METRIC: 0.0})
    assert session.states()[0] == TrialState.COMPLETE


LINE = {"training.ema.decay": {"kind": "uniform", "low": 0.0, "high": 0.99}}
OPTIMUM = 0.3


def distances(startup, seed, halves):
    """Mean distance of the last 20 of 40 proposals from the optimum of a quadratic."""
    sweep = optuna_sweep(LINE, trials=40, startup=startup, seed=seed)
    session, last = Session(sweep), []
    for number in range(40):
        if halves and number == 20:  # a second session, which has only the ledger
            session = Session(sweep, [past_of(*one) for one in enumerated(session)])
        tune_id, trial = session.ask()
        away = trial.values["training.ema.decay"] - OPTIMUM
        session.tell(tune_id, away**2)
        last.append(abs(away))
    return statistics.mean(last[20:])


def enumerated(session):
    for trial, reported in zip(session.ledger, session.study().trials, strict=True):
        yield trial.number, "finished", trial.values, tuple(reported.values)


@pytest.mark.parametrize("halves", [False, True], ids=["one session", "two sessions"])
def test_tpe_approaches_the_optimum(halves):
    seeds = range(4)
    tpe = statistics.mean(distances(1, seed, halves) for seed in seeds)
    drawn = statistics.mean(distances(40, seed, halves) for seed in seeds)
    assert tpe < 0.6 * drawn


def test_several_metrics_have_their_own_directions():
    sweep = optuna_sweep(
        LINE, trials=3, metric=["eval/velocity", "train/samples_per_second"], mode=["min", "max"]
    )
    session = Session(sweep)
    names = [session.ask()[0] for _ in range(3)]
    session.tell(names[0], 1.0, 10.0)
    session.tell(names[1], 2.0, 20.0)
    session.tell(names[2], 3.0, 5.0)  # worse in both
    assert sorted(trial.number for trial in session.study().best_trials) == [0, 1]
    past = [
        past_of(
            n, "finished", trial.values, ((1.0, 10.0), (2.0, 20.0), (3.0, 5.0))[n], sweep.metrics
        )
        for n, trial in enumerate(session.ledger)
    ]
    assert sorted(trial.number for trial in make_study(sweep, past).best_trials) == [0, 1]


def test_trial_with_one_of_several_metrics_failed():
    sweep = optuna_sweep(LINE, trials=2, metric=["eval/velocity", "train/samples_per_second"])
    session = Session(sweep)
    tune_id, _ = session.ask()
    session.search.on_trial_complete(
        tune_id, {"step": 6, "eval/velocity": 1.0, "done": True, "status": "finished"}
    )
    assert session.states() == [TrialState.FAIL]


def test_past_trial_with_one_of_several_metrics_failed(home):
    prepared_sweep = prepared(
        optuna_sweep(LINE, trials=2, metric=["eval/velocity", "train/samples_per_second"])
    )
    one = create_sweep(prepared_sweep)
    trial = one.folder.plan_trial(home, 0, {"training.ema.decay": 0.5})
    trial_run(home, one.sweep, trial, "stopped", {2: 0.1})
    again = resume_sweep(prepared_sweep, one.folder)
    assert [past.state for past in make_study(again.sweep, again.past).trials] == [TrialState.FAIL]


def test_proposals_depend_on_the_seed():
    def proposals(seed):
        session = Session(optuna_sweep(trials=8, seed=seed))
        found = []
        while asked := session.ask():
            found.append(asked[1].values)
            session.tell(asked[0], asked[1].values["optimizer.lr"])
        return found

    assert proposals(5) == proposals(5) != proposals(6)
