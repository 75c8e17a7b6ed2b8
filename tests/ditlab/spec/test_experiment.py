"""Derived values of an experiment, the fields that its hash covers, and its written form, which
loses nothing.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.spec.files import build_experiment
from ditlab.spec.optimization import AdamW
from ditlab.spec.yaml_text import dump_yaml, parse_yaml
from support.trainings.workers import tiny


def test_accumulation_is_derived():
    experiment = tiny(batch={"size": 96, "micro": 8}, resources__workers=3)
    assert (experiment.micro_size, experiment.num_micro, experiment.accumulation) == (8, 12, 4)
    whole = tiny(batch={"size": 96}, resources__workers=3)
    assert (whole.micro_size, whole.num_micro, whole.accumulation) == (32, 3, 1)


def test_experiments_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        tiny().seed = 3


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"engine": {"zero": {"stage": 3}, "activation_checkpointing": True}},
        {"resources": {"workers": 2, "cpus_per_worker": 1}},
        {"tracking": {"experiment": "other", "uri": "http://host:5000", "every": 7}},
        {"notify": [{"on": ["finished"], "to": "env:DITLAB_NOTIFY"}]},
        {"checkpoint": {"every": 1, "storage": "elsewhere"}},
        {"evaluation__every": 3},
        {"sampling": {"solver": "rk4", "steps": 3}},
    ],
)
def test_where_it_runs_and_what_is_logged_is_no_content(change):
    assert tiny(**change).content_hash() == tiny().content_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"optimizer__lr": 2e-4},
        {"optimizer__no_decay": ["norm"]},
        {"optimizer__lr_factors": {"head": 2.0}},
        {"model__depth": 1},
        {"model__init": {"from": "x"}},
        {"data__hold_out": 0.2},
        {"batch__size": 64},
        {"schedule": {"kind": "constant", "warmup": 1}},
        {"training__ema": None},
        {"training__freeze": ["head"]},
        {"training__lora": {"targets": ["*.mlp"]}},
        {"training__precision": "bf16"},
        {"objective__weights": {"direction": 0.5}},
    ],
)
def test_what_decides_the_weights_is_content(change):
    assert tiny(**change).content_hash() != tiny().content_hash()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0, "optimizer": {"lr": 1e-3}},
        {"optimizer__no_decay": [], "optimizer__lr_factors": {"matrix": 1.0, "scalar": 1.0}},
        {"optimizer__lr_patterns": {}},
        {"training__freeze": None, "training__lora": None},
        {"model__init": None},
    ],
)
def test_fields_that_say_the_default_change_no_hash(changes):
    """Runs of before there were these fields are found by their hash."""
    assert tiny(**changes).content_hash() == "0ee1eb77b1c0eac0"


def test_rates_by_role():
    adamw = AdamW(weight_decay=0.1, no_decay=("norm", "bias"), lr_factors={"head": 0.5})
    assert [
        (adamw.rates(role).lr_factor, adamw.rates(role).weight_decay)
        for role in ("matrix", "norm", "head")
    ] == [(1.0, 0.1), (1.0, 0.0), (0.5, 0.1)]


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
RATES = st.floats(min_value=1e-30, max_value=1e30)


@settings(max_examples=60, deadline=None)
@given(
    name=NAMES,
    seed=st.integers(0, 2**63 - 1),
    lr=RATES,
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)).map(list),
    title=TEXTS,
    path=TEXTS.filter(lambda text: "$" not in text),  # files with variables are refused
    clip=st.one_of(
        st.just({"kind": "none"}), RATES.map(lambda norm: {"kind": "norm", "max_norm": norm})
    ),
    ema=st.one_of(st.none(), st.floats(0, 0.9999).map(lambda decay: {"decay": decay})),
)
def test_yaml_gives_the_same_experiment_back(name, seed, lr, betas, title, path, clip, ema):
    experiment = tiny(
        name=name,
        seed=seed,
        optimizer={"lr": lr, "betas": betas},
        training={"steps": 2, "clip": clip, "ema": ema},
        tracking__experiment=title,
        data={"kind": "arrow", "path": path},
    )
    again = build_experiment(parse_yaml(dump_yaml(experiment.to_dict()), "dump"), "dump")
    assert again == experiment
    assert again.content_hash() == experiment.content_hash()
