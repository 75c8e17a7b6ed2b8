"""From axes to trials: distributions, numbers, crossings, grids, and the experiment that a trial
is.
"""

import math
import random
import statistics
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ditlab.spec.sweep import build_sweep
from ditlab.spec.sweep_axes import Axis
from ditlab.spec.sweep_space import differences, draw_values, enumerate_trials, experiment_for
from support.damage import refused
from support.specs import RATE, RATES, grid, uniform, whole

SEED = whole(0, 99)
DECAY = uniform(0.9, 0.999)


def axis(**fields):
    return TypeAdapter(Axis).validate_python(fields)


def draws(num=2000, **fields):
    one = axis(**fields)
    return [one.draw(random.Random(f"{number}")) for number in range(num)]


def test_uniform_fills_its_range():
    values = draws(kind="uniform", low=-1.0, high=3.0)
    assert -1 <= min(values) < -0.95 and 2.95 < max(values) <= 3
    assert statistics.mean(values) == pytest.approx(1, abs=4 * 4 / math.sqrt(12 * 2000))


def test_loguniform_has_its_median_at_the_geometric_mean():
    """log10 is U[-4, -2]: median -3, deviation of a median of n about half the range over
    sqrt(n).
    """
    logs = [math.log10(value) for value in draws(**RATE)]
    assert -4 <= min(logs) < -3.98 and -2.02 < max(logs) <= -2
    assert statistics.median(logs) == pytest.approx(-3, abs=4 * 1 / math.sqrt(2000))


def test_whole_numbers_reach_both_ends_evenly():
    values = draws(kind="int", low=2, high=8, step=3)
    assert set(values) == {2, 5, 8} and all(type(value) is int for value in values)
    for each in (2, 5, 8):
        assert values.count(each) == pytest.approx(2000 / 3, abs=4 * math.sqrt(2000 * 2 / 9))


@pytest.mark.parametrize("kind", ["choice", "grid"])
def test_choices_are_drawn_as_they_are_written(kind):
    values = [None, {"kind": "norm", "max_norm": 0.5}, [0.9, 0.95], True, "x"]
    drawn = draws(200, kind=kind, values=values)
    assert all(value in values for value in drawn) and all(value in drawn for value in values)


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.floats(1e-300, 1e300), min_size=2, max_size=2, unique=True).map(sorted),
    kind=st.sampled_from(["uniform", "loguniform"]),
    seed=st.integers(),
)
def test_no_draw_leaves_its_range(ends, kind, seed):
    low, high = ends
    assert low <= axis(kind=kind, low=low, high=high).draw(random.Random(seed)) <= high


def test_values_stay_with_more_trials_and_more_axes(sweep_of):
    few = enumerate_trials(sweep_of({**RATES, "training.ema.decay": DECAY}))
    more = enumerate_trials(
        sweep_of({"seed": SEED, "training.ema.decay": DECAY, "optimizer.lr": RATE}, trials=20)
    )
    assert [
        {path: trial[path] for path in one} for one, trial in zip(few, more, strict=False)
    ] == few
    assert len({trial["optimizer.lr"] for trial in more}) == 20


def test_draws_are_the_same_everywhere(sweep_of):
    """Other numbers here would be other trials of every sweep that is resumed."""
    space = {**RATES, "seed": SEED}
    trials = enumerate_trials(sweep_of(space, trials=3))
    assert [trial["seed"] for trial in trials] == [40, 64, 84]
    rates = [0.00019687376258928135, 0.00038474220713555245, 0.0012602852036466806]
    assert [trial["optimizer.lr"] for trial in trials] == pytest.approx(rates, rel=1e-12)
    assert enumerate_trials(sweep_of(space, trials=3, seed=1)) != trials


def test_conditions_are_drawn_before_what_depends_on_them():
    space = {
        "c": axis(kind="choice", values=[1, 2], when={"b": [1, 3]}),
        "b": axis(kind="choice", values=[1, 2, 3], when={"a": True}),
        "a": axis(kind="choice", values=[True, 1]),
    }
    asked = []

    def draw(path, axis):
        asked.append(path)
        return {"a": True, "b": 3, "c": 2}[path]

    assert draw_values(space, draw) == {"c": 2, "b": 3, "a": True} and asked == ["a", "b", "c"]
    assert draw_values(space, lambda path, axis: 1) == {"a": 1}
    assert draw_values(space, lambda path, axis: True if path == "a" else 2) == {"b": 2, "a": True}


def test_grid_axes_are_crossed_with_the_same_draws(sweep_of):
    weights = grid(0.0, 0.1, 1.0)
    space = {"objective.weights.direction": weights, "optimizer.lr": RATE, "seed": grid(0, 1)}
    crossed = enumerate_trials(sweep_of(space, trials=12))
    plain = enumerate_trials(sweep_of(RATES, trials=2))
    pairs = [(trial["objective.weights.direction"], trial["seed"]) for trial in crossed]
    assert pairs == [(0.0, 0), (0.0, 1), (0.1, 0), (0.1, 1), (1.0, 0), (1.0, 1)] * 2
    assert [trial["optimizer.lr"] for trial in crossed] == [
        trial["optimizer.lr"] for trial in plain for _ in range(6)
    ]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_combinations_are_those_of_the_whole_product(data):
    """Random spaces of five axes, each with conditions on those before it."""
    space = {}
    for name in "abcde":
        when = {
            other: data.draw(
                st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=3))
            )
            for other in data.draw(
                st.lists(st.sampled_from(list(space)), unique=True, max_size=2)
                if space
                else st.just([])
            )
        }
        values = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        space[name] = axis(kind="choice", values=values, when=when)
    mapping = {"name": "x", "base": {}, "metric": "eval/x", "search": {"kind": "grid"}}
    made = enumerate_trials(build_sweep({**mapping, "space": space}, "x"))
    products = (
        dict(zip(space, values, strict=True))
        for values in product(*(one.values for one in space.values()))
    )
    drawn = [
        draw_values(space, lambda path, axis, chosen=chosen: chosen[path]) for chosen in products
    ]
    assert len(made) == len({tuple(one.items()) for one in made})
    places = [
        [axis.values.index(one[path]) if path in one else -1 for path, axis in space.items()]
        for one in made
    ]
    assert places == sorted(places), "in the file's order, later axes fastest"
    assert all(list(one) == [path for path in space if path in one] for one in made)
    assert {tuple(one.items()) for one in made} == {tuple(one.items()) for one in drawn}


def test_optuna_enumerates_nothing(sweep_of):
    assert enumerate_trials(sweep_of(RATES, search={"kind": "optuna"})) is None


def test_a_trial_is_the_base_with_fixed_and_its_values(sweep_of):
    sweep = sweep_of(RATES, fixed={"training.steps": 7, "training.clip.max_norm": 2.0})
    experiment = experiment_for(sweep, {"optimizer.lr": 1e-3}, name="small-3")
    assert experiment.name == "small-3" and experiment.optimizer.lr == 1e-3
    assert experiment.training.steps == 7 and experiment.training.clip.max_norm == 2.0
    assert experiment_for(sweep, {}).name == "small"
    assert sweep.base["training"] == {"steps": 2}


def test_kinds_are_set_before_their_fields_whatever_the_order(sweep_of):
    sweep = sweep_of(RATES, fixed={"schedule.warmup": 1, "objective.time.std": 2.0})
    values = {
        "schedule.final": 0.1,
        "objective.time.kind": "logit_normal",
        "schedule.kind": "warmup_cosine",
    }
    experiment = experiment_for(sweep, values)
    assert experiment.schedule.final == 0.1 and experiment.schedule.warmup == 1
    assert experiment.objective.time.std == 2.0


def test_a_trial_that_is_none_names_axis_and_value(sweep_of):
    with refused(r"^with optimizer\.lr=-1\.0, seed=3: optimizer\.lr=-1\.0 must be above 0\.$"):
        experiment_for(sweep_of(RATES), {"optimizer.lr": -1.0, "seed": 3})
    with refused(r"space\.schedule\.final=0\.1: schedule\.kind=constant has no field 'final'"):
        experiment_for(sweep_of(RATES), {"schedule.final": 0.1})


def test_what_may_change_between_sessions_is_no_difference(sweep_of, small):
    old = sweep_of(RATES)
    new = sweep_of(
        {"optimizer.lr": {**RATE, "when": {}}},
        name="other",
        concurrent=3,
        time_budget="2h",
        reuse_workers=False,
        trials=9,
        base={**small, "seed": 0},
        search={"kind": "random"},
    )
    assert differences(old, new) == []


def test_what_makes_other_trials_is_a_difference(sweep_of, small):
    old = sweep_of(
        {**RATES, "seed": whole(0, 9)},
        fixed={"training.steps": 4},
    )
    new = sweep_of(
        {"optimizer.lr": {**RATE, "high": 0.1}, "training.ema.decay": DECAY},
        fixed={"training.steps": 5},
        trials=4,
        seed=1,
        search={"kind": "optuna"},
        metric="eval/loss",
        mode="max",
        base={**small, "batch": {"size": 64}},
        scheduler={"kind": "asha", "grace": 2},
    )
    assert differences(old, new) == [
        "base.batch.size=64 (was 128)",
        "fixed.training.steps=5 (was 4)",
        "space.optimizer.lr.high=0.1 (was 0.01)",
        "space.seed=null (was {kind: 'int', low: 0, high: 9, step: 1, when: {}})",
        "space.training.ema.decay={kind: 'uniform', low: 0.9, high: 0.999, when: {}} (was null)",
        "search={kind: 'optuna', startup: 10} (was {kind: 'random'})",
        "scheduler={kind: 'asha', grace: 2, reduction: 3} (was {kind: 'none'})",
        "metric='eval/loss' (was 'eval/velocity')",
        "mode='max' (was 'min')",
        "seed=1 (was 0)",
        "trials=4 (was 8)",
    ]
