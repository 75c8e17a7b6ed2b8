"""Settings of each parameter, as the reference reads them from a spec: closed forms for dit."""

import pytest

from ditlab_addons.check.prove.reference import ReferenceTrainer
from support.trainings.workers import tiny

QKV = "network.blocks.0.attention.qkv.weight"
OUT = "network.blocks.1.mlp.out.weight"
INPUT = "network.patch_embedding.projection.weight"
HEAD = "network.head.weight"
BIAS = "network.head.bias"
NORM = "network.final_norm.weight"
MUON = {"kind": "muon", "lr": 0.02, "weight_decay": 0.1}
FACTORS = {"lr_factors": {"matrix": 0.5, "norm": 4.0}}
PATTERNS = {"lr_patterns": {"head": 10.0, "*.bias": 3.0, "blocks.1": 7.0}}
LR = [
    ({"kind": "adamw", "lr": 0.01}, {QKV: 0.01, INPUT: 0.01, BIAS: 0.01}),
    (MUON, {QKV: 0.02, INPUT: 0.02, NORM: 0.02}),
    ({**MUON, "adamw_lr": 0.001}, {QKV: 0.02, INPUT: 0.001, HEAD: 0.001, NORM: 0.001}),
    ({**MUON, "adamw_lr": 0.001, **FACTORS}, {QKV: 0.01, NORM: 0.004, HEAD: 0.001}),
    ({**MUON, "adamw_lr": 0.001, **PATTERNS}, {HEAD: 0.01, BIAS: 0.03, OUT: 0.14, QKV: 0.02}),
    ({**MUON, **FACTORS, **PATTERNS}, {OUT: 0.02 * 0.5 * 7, BIAS: 0.02 * 10 * 3}),
]


def settings(optimizer):
    return ReferenceTrainer(tiny(optimizer=optimizer), 6, 4).settings


@pytest.mark.parametrize(("optimizer", "lr"), LR)
def test_learning_rates_are_products_of_the_factors_by_role_and_by_name(optimizer, lr):
    found = settings(optimizer)
    assert {name: found[name].lr for name in lr} == pytest.approx(lr, rel=1e-12)


def test_muon_has_the_matrices_and_decay_skips_the_roles_of_no_decay():
    found = settings({**MUON, "no_decay": ["norm", "bias"]})
    assert {name for name, own in found.items() if own.is_orthogonalised} == {
        name for name, own in found.items() if own.role == "matrix"
    }
    assert (found[QKV].is_orthogonalised, found[QKV].kind.num_parts) == (True, 3)
    assert (found[HEAD].role, found[INPUT].role) == ("head", "input")
    decays = {QKV: 0.1, HEAD: 0.1, INPUT: 0.1, NORM: 0.0, BIAS: 0.0}
    assert {name: found[name].weight_decay for name in decays} == decays


def test_frozen_parameters_have_no_settings():
    trainer = ReferenceTrainer(tiny(training={"steps": 6, "freeze": ["head"]}), 6, 4)
    assert trainer.frozen == {HEAD, BIAS}
    assert not trainer.frozen & set(trainer.settings)
