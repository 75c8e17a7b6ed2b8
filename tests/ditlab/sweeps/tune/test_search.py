"""Search with Optuna, asked as Tune asks, in a first and a second session."""

import math
import statistics
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from ditlab.spec.sweep_axes import Choice
from ditlab.spec.sweep_space import experiment_for
from ditlab.sweeps.search import index_of
from support.searches import Session
from support.sweeps import LR, METRIC, sweep_of

SPACE = {
    **LR,
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


PAIRS = {
    "model.width": {"kind": "choice", "values": [128, 160]},
    "model.num_heads": {"kind": "choice", "values": [4, 5]},
}


def test_only_values_that_make_a_valid_experiment_are_proposed():
    """128 is no multiple of 5."""
    session = Session(optuna_sweep(PAIRS, trials=20))
    found = session.rest()
    assert [trial.number for trial in found] == list(range(3)) and session.ledger == found
    assert session.ask() is None
    seen = [(trial.values["model.width"], trial.values["model.num_heads"]) for trial in found]
    assert sorted(seen) == [(128, 4), (160, 4), (160, 5)]  # each once
    assert all(experiment_for(session.sweep, trial.values) for trial in found)
    assert session.states() == [TrialState.COMPLETE] * 3


def test_search_ends_where_no_values_make_a_valid_experiment():
    sweep = optuna_sweep(PAIRS, trials=20, startup=200)
    nothing = dict(zip(PAIRS, (Choice(values=(128,)), Choice(values=(5,))), strict=True))
    session = Session(sweep.model_copy(update={"space": nothing}))
    assert session.ask() is None and session.ledger == []


def test_axis_exists_where_its_condition_holds():
    seen = set()
    for trial in Session(optuna_sweep(trials=40)).rest(lambda trial: trial.values["optimizer.lr"]):
        values = trial.values
        kind, warmup = values["schedule.kind"], values.get("schedule.warmup")
        assert warmup in {"constant": [None], "warmup_cosine": [0, 2, 4]}[kind]
        assert 1e-4 <= values["optimizer.lr"] <= 1e-1 and 0.5 <= values["training.ema.decay"] < 1
        assert list(values) == [path for path in SPACE if path in values]
        seen.add((kind, warmup, values["objective.time"]["kind"]))
    assert len(seen) > 4


def test_index_distinguishes_true_from_one():
    axis = Choice(values=(True, 1, False, 0, None))
    assert [index_of(axis, value) for value in axis.values] == [0, 1, 2, 3, 4]


def test_second_session_resumes_unfinished_trials_first():
    statuses = ["finished", "interrupted", "failed", "running", "stopped", "waiting"]
    first = Session(optuna_sweep(trials=12))
    known = [first.ask()[1] for _ in statuses]
    past = []
    for trial, status in zip(known, statuses, strict=True):
        measured = {METRIC: trial.number} if status in ("finished", "stopped") else {}
        past.append(replace(trial, status=status, step=6, metrics=measured))
    second = Session(first.sweep, past)
    found = second.rest()
    assert found[:3] == [known[1], known[3], known[5]]
    assert [trial.number for trial in found[3:]] == list(range(6, 12))
    assert sorted(trial.number for trial in second.ledger) == list(range(12))
    assert len({trial.run_id for trial in second.ledger}) == 12
    # no trial of the first session is drawn again
    assert len({str(trial.values) for trial in second.ledger}) == 12


def test_end_of_a_trial_is_reported():
    session = Session(optuna_sweep(trials=9))
    names = [session.ask()[0] for _ in range(9)]
    session.tell(names[0], 0.5)
    session.tell(names[1], 0.7, step=4, status="stopped")
    session.tell(names[2], 0.5, status="failed")
    session.tell(names[3], math.nan)
    session.tell(names[8], math.inf)
    complete = session.search.on_trial_complete
    complete(names[4], None, error=True)
    complete(names[5])
    complete(names[6], {"step": 6, METRIC: 0.1, "done": True})  # without a status
    session.tell(names[7], 0.1, status="interrupted")  # it is resumed in the next session
    fails = [TrialState.FAIL] * 5
    ends = [TrialState.COMPLETE, TrialState.PRUNED, *fails, TrialState.RUNNING, TrialState.FAIL]
    assert session.states() == ends
    assert session.study().trials[1].intermediate_values == {4: 0.7}
    assert session.study().best_value == 0.5
    # a second report, or one of an unknown trial, changes nothing
    complete(names[0], None, error=True)
    complete("unknown", {METRIC: 0.0})
    assert session.states()[0] == TrialState.COMPLETE


LINE = {"training.ema.decay": {"kind": "uniform", "low": 0.0, "high": 0.99}}
OPTIMUM = 0.3


def distances(startup, seed, halves):
    """Mean distance of the last 20 of 40 proposals from the optimum of a quadratic."""
    sweep = optuna_sweep(LINE, trials=40, startup=startup, seed=seed)
    session, last = Session(sweep), []
    for number in range(40):
        if halves and number == 20:  # a second session, which has only the ledger
            session = Session(sweep, session.trials())
        tune_id, trial = session.ask()
        away = trial.values["training.ema.decay"] - OPTIMUM
        session.tell(tune_id, away**2)
        last.append(abs(away))
    return statistics.mean(last[20:])


@pytest.mark.parametrize("halves", [False, True], ids=["one session", "two sessions"])
def test_tpe_approaches_the_optimum(halves):
    seeds = range(4)
    tpe = statistics.mean(distances(1, seed, halves) for seed in seeds)
    drawn = statistics.mean(distances(40, seed, halves) for seed in seeds)
    assert tpe < 0.6 * drawn


def test_several_metrics_have_their_own_directions():
    sweep = optuna_sweep(
        LINE, trials=4, metric=["eval/velocity", "train/samples_per_second"], mode=["min", "max"]
    )
    session = Session(sweep)
    for told in ((1.0, 10.0), (2.0, 20.0), (3.0, 5.0)):  # the last is worse in both
        session.tell(session.ask()[0], *told)
    end = {"step": 6, METRIC: 1.0, "done": True, "status": "finished"}  # without the other one
    session.search.on_trial_complete(session.ask()[0], end)
    assert session.states()[3] == TrialState.FAIL
    assert sorted(trial.number for trial in session.study().best_trials) == [0, 1]


def test_proposals_depend_on_the_seed():
    def proposals(seed):
        found = Session(optuna_sweep(trials=8, seed=seed)).rest(
            lambda trial: trial.values["optimizer.lr"]
        )
        return [trial.values for trial in found]

    assert proposals(5) == proposals(5) != proposals(6)
