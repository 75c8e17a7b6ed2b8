"""Runs that train a part of their network: exact resume, checkpoints, averages, forks, exports,
counts, refusals.
"""

import json
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.averages import PowerProfile
from ditlab.checkpoints.kept_averages import open_averages
from ditlab.checkpoints.store import CheckpointStore
from ditlab.runs.launch import build_model
from ditlab.spec.experiment import validate_experiment
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab_addons.interop.adapter_export import write_adapter
from ditlab_models.finetuning import fine_tune
from support.damage import refused
from support.marks import slow
from support.trainings.engines import module_for
from support.trainings.forks import small
from support.trainings.workers import TINY, contents, newest, resumed_exactly, tiny, train_here

LORA = {"rank": 3, "alpha": 6.0, "targets": ["blocks.*.attention", "*.mlp"]}


TRAINED = {"master", "exp_avg", "exp_avg_sq", "ema", "power_0.1"}
BLOCKS = ["blocks"]
"""All that is frozen of a fresh network: its head begins at zero, and frozen would let no gradient
through.
"""


def tuned(of=tiny, **changes):
    return of(**{"training__lora": LORA, "optimizer__lr": 1e-2, **changes})


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "fp32"), (3, "bf16"), *slow((1, "fp32"), (3, "fp32"), (2, "bf16"))]
)
def test_resume_is_bit_identical_and_a_checkpoint_holds_the_base_once(
    home, tmp_path, stage, precision
):
    experiment = tuned(
        engine__zero__stage=stage,
        training__precision=precision,
        training__averages__lengths=[0.1],
        training__freeze=BLOCKS,
    )
    resumed_exactly(experiment, home, tmp_path, 4)
    found = contents(newest(tmp_path / "whole"))
    for name in {name for _, name in found}:
        is_trained = "lora_" in name or "blocks." not in name
        fields = {field for field, owner in found if owner == name}
        assert fields == (TRAINED if is_trained else {"frozen"}), name
        if name.endswith("lora_B"):
            assert found["master", name].any()


def two_networks(experiment):
    return [experiment.family.build_network(experiment.model).eval() for _ in range(2)]


def test_merged_weights_compute_what_the_adapted_network_does(home, tmp_path):
    """Trained ones, averages, and averages that are rebuilt."""
    averages = {"lengths": [0.1, 0.2], "snapshots": 4}
    experiment = tuned(training__averages=averages, training__freeze=BLOCKS)
    train_here(experiment, home, tmp_path / "run")
    store = CheckpointStore.at(tmp_path / "run")
    with store.open(6) as reader, open_averages(store, reader, print) as kept:
        rebuilt = kept.rebuild(PowerProfile(0.15))
        sources = [partial(reader.weights, averaged=False), reader.weights, rebuilt.weights]
        found = [(weights(merged=False), weights()) for weights in sources]
    base, adapted = two_networks(experiment)
    fine_tune(adapted, None, experiment.training, len)
    x = torch.randn(4, 1, 8, 8)
    t = torch.rand(4)
    outputs = []
    for own, merged in found:
        adapted.load_state_dict(own)
        base.load_state_dict(merged)
        with torch.no_grad():
            outputs.append(base(x, t))
            torch.testing.assert_close(outputs[-1], adapted(x, t), rtol=1e-6, atol=1e-6)
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


def test_peft_opens_the_adapter_and_computes_the_same(home, tmp_path):
    peft = pytest.importorskip("peft")
    lora = {**LORA, "targets": ["*.mlp", "*.attention"]}
    experiment = tuned(training__lora=lora, training__freeze=["*"])
    train_here(experiment, home, tmp_path / "run")
    reader = newest(tmp_path / "run")
    raw = reader.weights(merged=False)
    for name, each in raw.items():
        if "lora_B" in name or name == "head.weight":
            each.normal_()
    write_adapter(reader, raw, tmp_path / "peft")
    base, merged = two_networks(experiment)
    base.load_state_dict({name: each for name, each in raw.items() if "lora_" not in name})
    merged.load_state_dict(reader.merge(raw))
    x, t = torch.randn(4, 1, 8, 8), torch.rand(4)
    before = base(x, t)
    opened = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft"))
    torch.testing.assert_close(opened(x, t), merged(x, t), rtol=1e-4, atol=1e-4)
    assert (merged(x, t) - before).abs().max() > 0.1


def test_a_fork_adapts_a_finished_run_and_exports_both_forms(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    parent = ditlab.train(small(name="base"), local=True, warn=print)
    experiment = tuned(small, name="tuned")
    counts = ditlab.count_parameters(experiment)
    assert counts.trainable == 2 * 3 * (32 + 96 + 32 + 32 + 32 + 128 + 128 + 32)
    assert counts.total > counts.frozen > 0
    shown = (
        f"{counts.total:,} parameters ({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
    )
    assert shown in ditlab.plan_training(experiment, local=True).notes[0]
    result = ditlab.train(experiment, local=True, start_from="base", weights_only=True, warn=print)
    run = ditlab.open_run(result.run_id)
    logged = JournalFacts.of(read_content(run.folder.journal)).params
    assert logged["parameters.trainable"] == str(counts.trainable)
    assert logged["parameters.frozen"] == str(counts.frozen)
    start = load_file(ditlab.open_run(parent.run_id).export(tmp_path / "base").files[0])
    merged = load_file(run.export(tmp_path / "merged").files[0])
    assert merged.keys() == start.keys()
    changed = [name for name in start if not torch.equal(start[name], merged[name])]
    assert len(changed) == 8 and all("attention" in name or "mlp" in name for name in changed)
    weights, config = run.export(tmp_path / "peft", format="peft").files
    assert json.loads(config.read_text())["lora_alpha"] == 6.0
    adapters = load_file(weights)
    name = "blocks.1.mlp.out"
    a, b = (adapters[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
    expected = start[f"{name}.weight"] + 2.0 * b @ a
    torch.testing.assert_close(expected, merged[f"{name}.weight"], rtol=0, atol=1e-7)
    longer = experiment.replace("training.steps", 9)
    frozen = small(name="frozen", training__steps=9, training__freeze=["head"])
    for spec, words in (
        (longer, "has other parameters than this network and loss in 16 tensors"),
        (frozen, "leave other parameters frozen than those of run .*head.bias"),
    ):
        with refused(words):
            ditlab.train(spec, local=True, start_from="base", warn=print)
    more = experiment.replace_all({"name": "more", "training.freeze": BLOCKS})
    more = ditlab.train(more, local=True, warn=print)
    for run_id, words in (
        (parent.run_id, "this run has none; leave --format out"),
        (more.run_id, r"trained \d+ tensors of the base too, such as final_norm.bias"),
    ):
        with refused(words):
            ditlab.open_run(run_id).export(tmp_path / run_id, format="peft")


def test_an_adapter_is_drawn_by_its_name_alone():
    found = []
    for targets in (["*"], ["blocks.1.mlp.out"]):
        network = module_for(tuned(training__lora={**LORA, "targets": targets})).network
        found.append(network.blocks[1].mlp.out.lora_A)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("training", "patterns", "message"),
    [
        ({"freeze": ["blocs.0"]}, {}, "training.freeze='blocs.0' matches no parameter; names here"),
        ({"freeze": ["*"]}, {}, "training.freeze=['*'] freezes every parameter; leave some to"),
        (
            {"lora": {"targets": ["blocks.0.atention"]}},
            {},
            "training.lora.targets='blocks.0.atention' matches no Linear of the network; names here",
        ),
        ({"lora": {"targets": []}}, {}, "training.lora.targets=[] names no Linear; name some"),
        ({"lora": {"rank": 0, "targets": ["*"]}}, {}, "training.lora.rank=0 must be at least 1"),
        (
            {"freeze": ["head"]},
            {"head": 2.0},
            "optimizer.lr_patterns='head' matches no trained parameter",
        ),
        ({}, {"head": 0}, "optimizer.lr_patterns.head=0 must be above 0"),
    ],
)
def test_refusals(training, patterns, message):
    spec = {**TINY, "training": {"steps": 6, **training}, "optimizer": {"lr_patterns": patterns}}
    with refused(re.escape(message)):
        build_model(validate_experiment(spec))
