"""`ditlab prove` finds nothing off where nothing is: every family under every engine that a spec
accepts.
"""

from contextlib import suppress
from itertools import product

import pytest

from ditlab.errors import UserError
from support.trainings.family_specs import FAMILIES, GAUSSIAN, smallest
from support.trainings.proven import MIXTURE, off, prove_all, prove_here

ENGINES = [
    {
        "engine__zero__stage": stage,
        "training__precision": precision,
        "engine__activation_checkpointing": checkpointing,
    }
    for stage, precision, checkpointing in product((0, 1, 2, 3), ("fp32", "bf16"), (False, True))
]
OTHERS = [
    {"training__clip": {"kind": "none"}},
    {"training__clip": {"kind": "zclip", "warmup": 1, "max_norm": None}},
    {"training__clip": {"kind": "zclip_ratio", "ratio": 1.0}},
    {"training__ema": None},
    {"training__averages": {"lengths": [0.05, 0.1]}},
    {"optimizer": {"kind": "muon", "lr": 1e-3}},
    {
        "optimizer": {
            "kind": "muon",
            "lr": 1e-2,
            "scale": "spectral",
            "nesterov": False,
            "adamw_lr": 1e-3,
        }
    },
    {
        "optimizer": {
            "kind": "adamw",
            "no_decay": ["bias", "norm"],
            "lr_factors": {"matrix": 0.5},
            "betas": [0.5, 0.7],
        }
    },
    {"engine__zero__stage": 2, "engine__zero__offload": "cpu"},
    {
        "engine__zero__stage": 3,
        "engine__zero__offload": "cpu",
        "engine__zero__offload_parameters": "cpu",
    },
    {"engine__activation_offload": "cpu"},
    {"batch__micro": None},
    {"batch__micro": 1},
    {"schedule": {"kind": "stepped_cosine_restart", "cycle": 5}},
    {"training__lora": {"rank": 2, "targets": ["*"]}, "engine__zero__stage": 3},
    {
        "training__freeze": ["*.bias"],
        "optimizer": {"kind": "adamw", "lr_patterns": {"*.weight": 0.5}},
    },
]
"""What else a spec of any family may set, with ZeRO-1 where it says nothing of the stage."""
OF_ONE_FAMILY = [
    ("dit", {"data": MIXTURE}),
    ("unet", {"data": {**MIXTURE, "draw": "batch"}}),
    ("dit", {"model__adaln": "zero"}),
    ("dit", {**GAUSSIAN, "model__adaln": "zero", "model__embeddings": "per_block"}),
    ("dit", {"training__steps": 1, "schedule": {"kind": "constant"}}),
    ("dlm", {"model__block_size": 4, "sampling__block": {}}),
]


def assert_all_hold(cells, workers, home, monkeypatch):
    """Prove each cell, a family and its changes, that a spec accepts; at least half of them."""
    tried = []
    for family, changes in cells:
        with suppress(UserError):
            tried.append(((family, changes), smallest(family, workers, **changes)))
    assert len(tried) > len(cells) / 2
    found = prove_all([experiment for _, experiment in tried], home, monkeypatch)
    alarms = [
        f"{cell}\n  {line}"
        for (cell, _), each in zip(tried, found, strict=True)
        for line in off(each)[:8]
    ]
    assert not alarms, "\n".join(alarms)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "dit")) for name in FAMILIES],
)
def test_the_smallest_experiment_proves(family, home):
    """In ten steps; the long tests prove twenty."""
    assert not off(prove_here(smallest(family, training__steps=10), home))


def test_a_branch_detached_on_purpose_raises_no_alarm(home):
    """The bound of a learned variance trains the variance alone: its gradient is none of its
    value.
    """
    assert not off(prove_here(smallest("dit", training__steps=10, **GAUSSIAN), home))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_engine_and_no_other_setting_raises_an_alarm(family, workers, home, monkeypatch):
    assert_all_hold(
        [(family, changes) for changes in (*ENGINES, *OTHERS)], workers, home, monkeypatch
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_no_setting_of_one_family_raises_an_alarm(workers, home, monkeypatch):
    assert_all_hold(OF_ONE_FAMILY, workers, home, monkeypatch)


@pytest.mark.slow
def test_uneven_micro_batches_raise_no_alarm(home, monkeypatch):
    # three micro-batches on two workers
    uneven = {"resources__workers": {"min": 1, "max": 2}, "batch__size": 6}
    assert_all_hold(
        [("dit", uneven), ("dit", {**uneven, "engine__zero__stage": 3})], 2, home, monkeypatch
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_compiled_network_raises_an_alarm(family, home, monkeypatch):
    compiled = {"engine__compile": True}
    assert_all_hold(
        [(family, compiled), (family, {**compiled, "training__precision": "bf16"})],
        1,
        home,
        monkeypatch,
    )
