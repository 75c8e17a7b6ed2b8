"""Sweeps as files: their base, their overrides, their written form, their schema."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.spec.files import is_sweep, load_experiment
from ditlab.spec.sweep import build_sweep, load_sweep
from ditlab.spec.yaml_text import dump_yaml, parse_yaml
from support.specs import choice, grid, refusal, whole

SWEEP = """\
name: small-sweep
base: small.yaml
fixed: {training.steps: 300, evaluation.every: 100}
space:
  optimizer.lr: {kind: loguniform, low: 1.0e-4, high: 1.0e-2}
  schedule.kind: {kind: choice, values: [constant, warmup_cosine]}
  schedule.final: {kind: uniform, low: 0.0, high: 0.2, when: {schedule.kind: warmup_cosine}}
  objective.time: {kind: choice, values: [{kind: uniform}, {kind: logit_normal, mean: 0.0, std: 1.0}]}
search: {kind: random}
metric: eval/velocity
trials: 8
"""


@pytest.fixture
def path(small, write):
    write("small.yaml", small)
    return write("sweep.yaml", SWEEP)


def test_the_base_becomes_its_content(path, small):
    sweep = load_sweep(path)
    assert sweep.base == small and list(sweep.space) == list(parse_yaml(SWEEP, "x")["space"])
    assert (sweep.metrics, sweep.modes) == (("eval/velocity",), ("min",))


@pytest.mark.parametrize("kind", ["asha", "median", "race"])
def test_a_scheduler_without_grace_has_the_pages_number(kind, path, write):
    sweep = load_sweep(write("short.yaml", f"{SWEEP}scheduler: {{kind: {kind}}}\n"))
    assert sweep == load_sweep(
        write("long.yaml", f"{SWEEP}scheduler: {{kind: {kind}, grace: 100}}\n")
    )


def test_the_base_may_be_written_out_or_have_parents(path, write, small):
    assert load_sweep(write("out.yaml", {**parse_yaml(SWEEP, "x"), "base": small})) == load_sweep(
        path
    )
    write("child.yaml", "extends: small.yaml\nseed: 7\n")
    assert load_sweep(write("other.yaml", SWEEP.replace("small.yaml", "child.yaml"))).base == {
        **small,
        "seed": 7,
    }


def test_a_base_is_found_from_the_file_that_names_it(path, write, small):
    below = write(
        "below/sweep.yaml", "extends: ../sweep.yaml\nsearch: {kind: optuna, startup: 3}\n"
    )
    assert is_sweep(below)
    sweep = load_sweep(below)
    assert (sweep.base, sweep.search.kind, sweep.trials) == (small, "optuna", 8)


def test_sweeps_and_experiments_are_told_apart(path, small):
    base = path.with_name("small.yaml")
    assert is_sweep(path) and not is_sweep(base) and is_sweep({"base": "x"}) and not is_sweep(small)
    assert "is a sweep; name an experiment, or use `ditlab tune`" in refusal(load_experiment, path)
    assert "is an experiment; name a sweep, or use `ditlab train`" in refusal(load_sweep, base)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("nowhere.yaml", "nowhere.yaml names no file; give a path relative to this file."),
        ("sweep.yaml", "sweep.yaml is a sweep itself; name an experiment."),
        ("3", "base=3 must be the path of an experiment's YAML, or the experiment itself."),
    ],
)
def test_what_is_no_base(path, write, base, said):
    other = write("other.yaml", SWEEP.replace("small.yaml", base))
    message = refusal(load_sweep, other)
    assert message.startswith(f"{other}: base=") and message.endswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": {}}, "space={} holds no axis; add one"),
        ({"space": {"seed": whole(2, 2)}}, "low must be below high"),
        (
            {"space": {"seed": {**whole(1, 6), "step": 2}}},
            "steps above low; set high to 5.",
        ),
        (
            {"space": {"seed": {**whole(1, 2), "step": 2}}},
            "steps above low; lower step.",
        ),
        (
            {"space": {"x": choice()}},
            "space.x.values=[]: there is no value in it; give at",
        ),
        ({"space": {"x": grid(1, 2, 1.0)}}, "1.0 is in it twice; keep one"),
        ({"space": {1: grid(1)}}, "space.1=1 must be text"),
        ({"fixed": [1]}, "fixed=[1] must be a mapping of fields."),
        ({"metric": 3}, "metric=3 must be the name of a metric"),
        ({"metric": ["a", "a"]}, "metric=['a', 'a'] names a metric twice"),
        ({"mode": "mean"}, "mode='mean' must be min or max"),
        (
            {"metric": ["a", "b"], "mode": ["min"]},
            "mode=['min'] has 1 entries for 2 of metric=['a', 'b']; give one",
        ),
        ({"trials": 10**5}, "trials=100000 must be at most 10,000, or null"),
        (
            {"time_budget": "2 weeks"},
            "time_budget='2 weeks' is no time; write seconds, or a text such as 90min, 2h",
        ),
    ],
)
def test_mistakes_in_its_own_fields(small, change, said):
    mapping = {**parse_yaml(SWEEP, "x"), "base": small, **change}
    message = refusal(build_sweep, mapping, "sweep.yaml")
    assert message.startswith("sweep.yaml: ") and said in message


def test_true_is_not_one(sweep_of):
    assert sweep_of({"x": choice(True, 1, "1")}).space["x"].values == (True, 1, "1")


@pytest.mark.parametrize(("text", "seconds"), [("90min", 5400), ("0.5 h", 1800), (12, 12)])
def test_time_budgets_are_seconds(sweep_of, text, seconds):
    assert sweep_of({"seed": whole(0, 1)}, time_budget=text).time_budget == seconds


def test_overrides_set_fields_axes_and_fixed_values(path):
    sweep = load_sweep(
        path,
        [
            "trials=4",
            "scheduler.kind=asha",
            "scheduler.grace=100",
            "search={kind: optuna}",
            "fixed.training.steps=200",
            "fixed.batch={size: 64}",
            "space.optimizer.lr={kind: grid, values: [0.1]}",
            "space.objective.time=null",
            "space.seed={kind: int, low: 0, high: 3}",
            "time_budget=1h",
        ],
    )
    assert (sweep.trials, sweep.scheduler.kind, sweep.scheduler.grace) == (4, "asha", 100)
    assert (sweep.search.kind, sweep.search.startup, sweep.time_budget) == ("optuna", 10, 3600)
    assert sweep.fixed == {"training.steps": 200, "evaluation.every": 100, "batch": {"size": 64}}
    assert list(sweep.space) == ["optimizer.lr", "schedule.kind", "schedule.final", "seed"]
    assert sweep.space["optimizer.lr"].values == (0.1,)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("base.seed=3", "the base is left as it is; set fixed.seed instead."),
        ("base=other.yaml", "the base is left as it is; "),
        ("triasl=3", "triasl is no known field; did you mean 'trials'?"),
        (
            "space.optimizer.lr=0.1",
            "an axis is set as a whole, such as 'space.optimizer.lr={kind: choice",
        ),
        (
            "space.optimizer.lrr=null",
            "there is no such axis to remove; did you mean 'optimizer.lr'?",
        ),
    ],
)
def test_mistakes_begin_with_the_override(path, override, said):
    message = refusal(load_sweep, path, [override])
    assert message.startswith(f"--set {override}: ") and said in message


def test_fields_of_a_kind_that_is_replaced_are_refused(path, write):
    other = write("asha.yaml", SWEEP + "scheduler: {kind: asha, grace: 100}\n")
    message = refusal(load_sweep, other, ["scheduler.reduction=4", "scheduler.kind=none"])
    assert "scheduler.kind=none has no field 'reduction'" in message


RANGES = st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=2, unique=True).map(sorted)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-1e6, 1e6),
    st.text("ab: #'", max_size=4),
)
VALUES = st.lists(
    st.one_of(
        PLAIN,
        st.lists(PLAIN, max_size=2),
        st.dictionaries(st.text("ab", min_size=1), PLAIN, max_size=2),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda value: repr(value).lower().replace(".0", "").replace("-0", "0"),
)


@settings(max_examples=60, deadline=None)
@given(
    ends=RANGES,
    values=VALUES,
    kind=st.sampled_from(["choice", "grid"]),
    when=st.dictionaries(st.text("ab"), PLAIN),
)
def test_yaml_gives_the_same_sweep_back(ends, values, kind, when):
    mapping = {
        **parse_yaml(SWEEP, "x"),
        "base": {"name": "x"},
        "time_budget": "1d",
        "metric": ["a", "b"],
    }
    mapping["space"] |= {"x": {"kind": "loguniform", "low": ends[0], "high": ends[1], "when": when}}
    mapping["space"] |= {"y": {"kind": kind, "values": values}}
    sweep = build_sweep(mapping, "x")
    again = build_sweep(parse_yaml(dump_yaml(sweep.to_dict()), "dump"), "dump")
    assert again == sweep and again.to_dict() == sweep.to_dict()
    assert list(again.space) == list(sweep.space)
