"""Draws that repeat a configuration are trained once, and said."""

import pytest

from ditlab.spec.sweep_space import enumerate_trials, num_repeats, valid_combinations
from ditlab.sweeps.start import read_past_trials
from support.sweeps import planned, prepared, started, sweep_of

TWO = {"optimizer.lr": {"kind": "choice", "values": [1e-3, 1e-2]}}
DEPTHS = {"model.depth": {"kind": "int", "low": 1, "high": 3}}


def test_ten_draws_of_two_values_are_two_trials(home):
    found = prepared(sweep_of(TWO, trials=10))
    assert [trial.number for trial in found.trials] == [0, 1] and found.num_trials == 2
    assert (
        "different configurations: 2 in 10 draws; a draw that repeats an earlier one is not "
        "trained again."
    ) in found.notes
    assert not any("different" in note for note in prepared(sweep_of()).notes)
    assert prepared(sweep_of(TWO, trials=10, seeds=3)).num_trials == 6  # seeds are no repeats


def test_more_draws_change_no_earlier_configuration():
    few = enumerate_trials(sweep_of({**TWO, **DEPTHS}, trials=5))
    many = enumerate_trials(sweep_of({**TWO, **DEPTHS}, trials=60))
    assert many[: len(few)] == few and len(many) == 6
    assert num_repeats(sweep_of({**TWO, **DEPTHS}, trials=60)) == 54


def test_members_of_a_population_may_begin_alike():
    sweep = sweep_of(TWO, scheduler={"kind": "pbt", "interval": 2}, trials=6)
    assert len(enumerate_trials(sweep)) == 6 and num_repeats(sweep) == 0


@pytest.mark.parametrize(
    ("space", "most"),
    [
        (TWO, 2),
        # 128 is no multiple of 5
        (
            {
                "model.width": {"kind": "choice", "values": [160, 128]},
                "model.num_heads": {"kind": "choice", "values": [4, 5]},
            },
            3,
        ),
    ],
)
def test_a_search_has_as_many_trials_as_there_are_configurations(home, space, most):
    sweep = sweep_of(space, search={"kind": "optuna"}, trials=10)
    found = prepared(sweep)
    assert found.num_trials == most == len(list(valid_combinations(sweep)))
    assert (
        f"different configurations: {most} in all, fewer than trials=10; none is trained twice."
    ) in found.notes
    assert prepared(sweep_of(space, search={"kind": "optuna"}, trials=2)).num_trials == 2


def test_a_ledger_that_has_repeats_can_be_resumed(home):
    """An earlier version planned every draw."""
    one = started(sweep_of(TWO, trials=10))
    first, second = (trial.values for trial in planned(one))
    one.folder.ledger.unlink()
    values = [first, first, second, first]
    one.folder.plan_trials(
        home, [(number, each, number, None) for number, each in enumerate(values)]
    )
    assert [trial.values for trial in read_past_trials(one.prepared, one.folder)] == values
