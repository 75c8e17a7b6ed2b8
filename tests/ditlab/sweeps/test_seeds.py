"""Seeds of a sweep: configurations crossed with seeds in the ledger, in a resumed sweep and in
Optuna's study, and mistakes.
"""

from itertools import product

import pytest
from optuna.trial import TrialState

from ditlab.spec.quick import shorten_sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab.sweeps.folder import trial_experiment
from ditlab.sweeps.prepare import unshared_axes
from ditlab.sweeps.results import summarize_sweep
from ditlab.sweeps.start import find_stored_sweep, resume_sweep
from support.damage import refused
from support.searches import Session
from support.sweeps import LR, METRIC, planned, prepared, started, sweep_of, trial_run


def test_all_configurations_come_at_the_first_seed_first(home):
    one = started(sweep_of(seeds=2, trials=3, fixed={"seed": 5}))
    found = planned(one)
    places = [(trial.seed, trial.configuration) for trial in found]
    assert places == [*product((5, 6), range(3))]
    assert found[0].values == found[3].values and one.num_trials == 6
    experiment = trial_experiment(one.sweep, found[4])
    assert (experiment.name, experiment.seed) == ("rates-001-seed6", 6)
    assert one.prepared.notes[1] == "3 configurations under 2 seeds (5 to 6): 6 runs"
    for trial in found:
        value = trial.configuration + 0.5 * (trial.seed - 5)
        trial_run(home, one.sweep, trial, "finished", {6: value})
    configurations = summarize_sweep(one, 1.0).trials
    assert [configuration.metrics[METRIC] for configuration in configurations] == [0.25, 1.25, 2.25]


def test_a_resumed_sweep_may_have_more_configurations_and_seeds(home):
    one = started(sweep_of(trials=2))
    before = planned(one)
    more = find_stored_sweep(home, one.folder.sweep_id, sweep_of(trials=3, seeds=2))
    again = resume_sweep(prepared(more.sweep), one.folder)
    after = planned(again)
    assert after[:2] == before  # the seed of the base is the first one
    assert [trial.number for trial in after] == list(range(6))
    added = [(trial.configuration, trial.seed) for trial in after[2:]]
    assert added == [(2, 0), (0, 1), (1, 1), (2, 1)]
    assert (more.stored.trials, one.folder.load_sweep().trials) == (2, 3)
    assert (again.num_trials, again.num_remaining) == (6, 6)
    with refused(r"seeds=1 \(was 2\)"):
        find_stored_sweep(home, one.folder.sweep_id, sweep_of(trials=3))


def test_the_study_gets_the_mean_of_a_configuration():
    session = Session(sweep_of(search={"kind": "optuna", "startup": 1}, trials=2, seeds=3))
    asked = [session.ask() for _ in range(3)]
    assert [(trial.configuration, trial.seed) for _, trial in asked] == [(0, 0), (0, 1), (0, 2)]
    assert len({str(trial.values) for _, trial in asked}) == 1
    for (tune_id, _), value in zip(asked, (1.0, 2.0, 6.0), strict=True):
        assert session.states() == [TrialState.RUNNING]
        session.tell(tune_id, value)
    assert session.study().best_value == 3.0
    assert session.ask()[1].configuration == 1 and len(session.ledger) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space": {"seed": {"kind": "grid", "values": [0, 1]}}},
            r"space\.seed and seeds=3 both set the seed of a trial",
        ),
        (
            {"scheduler": {"kind": "pbt", "interval": 2}},
            r"seeds=3 repeats a configuration, and under scheduler\.kind=pbt",
        ),
        ({"trials": 4000}, "seeds=3 makes 12,000 runs of 4,000 configurations"),
    ],
)
def test_mistakes(changes, message):
    with refused(message):
        check_sweep(sweep_of(**{"seeds": 3, **changes}), "sweep.yaml")


def test_axes_by_which_draws_differ_are_named():
    space = {
        **LR,
        "batch.size": {"kind": "choice", "values": [16, 32]},
        "objective.time": {
            "kind": "choice",
            "values": [{"kind": "uniform"}, {"kind": "logit_normal", "std": 1.0}],
        },
        "objective.weights.direction": {"kind": "uniform", "low": 0.0, "high": 0.3},
        "data.hold_out": {"kind": "choice", "values": [0.1, 0.2]},
    }
    assert unshared_axes(sweep_of(space)) == ["batch.size", "objective.time", "data.hold_out"]


def test_a_quick_sweep_has_two_seeds():
    assert shorten_sweep(sweep_of(seeds=5)).spec.seeds == 2
