"""`--set`: dotted paths over the experiment, checked before their values are."""

import pytest

from ditlab.spec.experiment import class_for
from ditlab.spec.files import load_experiment
from ditlab.spec.overrides import assign, parse_overrides
from ditlab.spec.sweep import load_sweep
from support.specs import choice, refusal


@pytest.fixture
def load(small, write):
    path = write("small.yaml", small)
    return lambda *overrides: load_experiment(path, overrides)


def test_values_are_yaml(load):
    experiment = load(
        "model.depth=3",
        "optimizer.lr=1e-2",
        "training.ema=null",
        "optimizer.betas=[0.8, 0.95]",
        "name=other",
        "training.clip={kind: norm, max_norm: 0.5}",
        "engine.compile=true",
    )
    assert (experiment.model.depth, experiment.optimizer.lr) == (3, 1e-2)
    assert (experiment.optimizer.betas, experiment.name) == ((0.8, 0.95), "other")
    assert experiment.engine.compile is True and experiment.training.ema is None
    assert experiment.training.clip.max_norm == 0.5


def test_values_may_hold_equals_signs(load):
    assert load("tracking.uri=http://host/?a=b").tracking.uri == "http://host/?a=b"


def test_a_default_can_be_changed_in_part(load):
    """A section that the file leaves out has the default's kind, so its fields can be set one by
    one.
    """
    experiment = load(
        "training.clip.max_norm=0.5",
        "data.hold_out=0.2",
        "engine.zero.stage=3",
        "training.ema.decay=0.5",
    )
    assert (experiment.training.clip.kind, experiment.training.clip.max_norm) == ("norm", 0.5)
    assert (experiment.data.kind, experiment.data.hold_out) == ("digits", 0.2)
    assert (experiment.engine.zero.stage, experiment.training.ema.decay) == (3, 0.5)


def test_another_kind_drops_the_fields_of_the_old_one(load):
    schedule = "schedule={kind: warmup_cosine, warmup: 1, final: 0.1}"
    found = load(schedule, "schedule.kind=stepped_cosine_restart").schedule
    assert found.kind == "stepped_cosine_restart" and not hasattr(found, "final")


def test_a_kind_does_not_undo_what_was_set_before_it(load):
    data = load("data.hold_out=0.2", "data.kind=mnist").data
    assert (data.kind, data.hold_out) == ("mnist", 0.2)


@pytest.mark.parametrize(
    ("written", "name"), [("0755", "0755"), ("true", "true"), ("null", "null"), ("'1'", "1")]
)
def test_a_field_of_text_takes_the_text_as_it_is_written(load, written, name):
    assert load(f"name={written}").name == name


def test_the_fields_type_decides(load):
    experiment = load(
        "training.steps=1e3",
        "encoders.cache=2E1",
        "checkpoint.storage=null",
        "optimizer.lr=1e3",
        "data.hold_out=1e-1",
        "tracking.experiment=a: b # c",
        "checkpoint.every=null",
    )
    assert (experiment.training.steps, experiment.encoders.cache) == (1000, 20)
    assert experiment.optimizer.lr == 1000.0
    assert experiment.checkpoint.storage is experiment.checkpoint.every is None
    assert experiment.tracking.experiment == "a: b # c"


def test_so_does_it_for_the_fixed_fields_of_a_sweep(small, write):
    axis = {"seed": choice(1, 2)}
    path = write(
        "sweep.yaml",
        {"name": "s", "base": small, "space": axis, "metric": "eval/velocity", "trials": 2},
    )
    found = load_sweep(
        path,
        ["name=0755", "fixed.tracking.experiment=0755", "fixed.training.steps=1e3", "trials=1e1"],
    )
    assert (found.name, found.trials) == ("0755", 10)
    assert found.fixed == {"tracking.experiment": "0755", "training.steps": 1000}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.steps=1e-3", "training.steps=0.001 must be a whole number, or null for none."),
        ("training.ema=none", "must be a mapping of fields (decay), or null for none."),
        (
            "checkpoint.storage=none",
            "--set checkpoint.storage=none: write null for none, and quotes",
        ),
        ("engine.activation_checkpointing=on", "must be true or false."),
    ],
)
def test_words_of_yaml_1_1_are_told_what_to_write(load, override, said):
    assert said in refusal(load, override)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.time.std=2.0", "set objective.time.kind to logit_normal first"),
        ("data.path=x", "set data.kind to arrow first"),
        ("model.depth.deeper=3", "model.depth is a plain value"),
        ("a..b=3", "write a dotted path and a value"),
        ("optimizer.betas=[0.9", "expected ',' or ']'"),
        ("extends=base.yaml", "extends is no known field"),
    ],
)
def test_mistakes_begin_with_the_override(load, override, said):
    message = refusal(load, override)
    assert message.startswith(f"--set {override}: ") and said in message


def test_the_mapping_given_is_left_alone(small):
    before = {**small, "model": dict(small["model"])}
    assign(small, parse_overrides(["model.depth=5", "training.clip.max_norm=3.0"]), class_for)
    assert small == before
