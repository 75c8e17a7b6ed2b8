"""Runs that train a part of their network: exact resume, checkpoints, averages, forks, exports,
counts, refusals.
"""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.averages import PowerProfile
from ditlab.checkpoints.kept_averages import open_averages
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError
from ditlab.runs.launch import build_model
from ditlab.spec.experiment import validate_experiment
from ditlab.spec.sweep_space import check_sweep
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab_addons.interop.adapter_export import write_adapter
from ditlab_models.finetuning import fine_tune
from support.marks import slow
from support.sweeps import sweep_of
from support.trainings.engines import module_for
from support.trainings.forks import small
from support.trainings.workers import TINY, newest, tiny, train_here

LORA = {"rank": 3, "alpha": 6.0, "targets": ["blocks.*.attention", "*.mlp"]}


TRAINED = {"master", "exp_avg", "exp_avg_sq", "ema", "power_0.1"}
BLOCKS = ["blocks"]
"""All that is frozen of a fresh network: its head begins at zero, and frozen would let no gradient
through.
"""


def tuned(stage=1, precision="fp32", of=tiny, **training):
    training = {"steps": 6, "ema": {"decay": 0.9}, "precision": precision, "lora": LORA, **training}
    return of(engine__zero={"stage": stage}, training=training, optimizer={"lr": 1e-2})


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        (0, "fp32"),
        (3, "bf16"),
        *slow((1, "fp32"), (3, "fp32"), (2, "bf16")),
    ],
)
def test_resume_is_bit_identical_and_a_checkpoint_holds_the_base_once(
    home, tmp_path, stage, precision
):
    experiment = tuned(stage, precision, averages={"lengths": [0.1]}, freeze=BLOCKS)
    train_here(experiment, home, tmp_path / "whole")
    assert train_here(experiment, home, tmp_path / "half", stop_after=4)[0].step == 4
    train_here(experiment, home, tmp_path / "half")
    one, two = newest(tmp_path / "whole"), newest(tmp_path / "half")
    assert one.manifest.shapes == two.manifest.shapes
    assert one.manifest.scalars == two.manifest.scalars
    for name, shape in one.manifest.shapes.items():
        fields = {field for _, field, owner, *_ in one.manifest.pieces if owner == name}
        is_trained = "lora_" in name or "blocks." not in name
        assert fields == (TRAINED if is_trained else {"frozen"}), name
        if name.endswith("lora_B"):
            assert one.read("master", name, 0, 1).any()
        numel = torch.Size(shape).numel()
        for field in fields:
            values = [each.read(field, name, 0, numel) for each in (one, two)]
            assert torch.equal(*values), (field, name)


def two_networks(experiment):
    return [experiment.family.build_network(experiment.model).eval() for _ in range(2)]


def test_merged_weights_compute_what_the_adapted_network_does(home, tmp_path):
    """Trained ones, averages, and averages that are rebuilt."""
    experiment = tuned(averages={"lengths": [0.1, 0.2], "snapshots": 4}, freeze=BLOCKS)
    train_here(experiment, home, tmp_path / "run")
    store = CheckpointStore.at(tmp_path / "run")
    with store.open(6) as reader, open_averages(store, reader, print) as kept:
        rebuilt = kept.rebuild(PowerProfile(0.15))
        sources = [partial(reader.weights, averaged=False), reader.weights, rebuilt.weights]
        found = [(weights(merged=False), weights()) for weights in sources]
    base, adapted = two_networks(experiment)
    fine_tune(adapted, None, experiment.training, len)
    x, t, outputs = torch.randn(4, 1, 8, 8), torch.rand(4), []
    for own, merged in found:
        adapted.load_state_dict(own)
        base.load_state_dict(merged)
        with torch.no_grad():
            outputs.append(base(x, t))
            torch.testing.assert_close(outputs[-1], adapted(x, t), rtol=1e-6, atol=1e-6)
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


def test_peft_opens_the_adapter_and_computes_the_same(home, tmp_path):
    peft = pytest.importorskip("peft")
    experiment = tuned(lora={**LORA, "targets": ["*.mlp", "*.attention"]}, freeze=["*"])
    train_here(experiment, home, tmp_path / "run")
    reader = newest(tmp_path / "run")
    raw = reader.weights(merged=False)
    raw = {name: torch.randn_like(each) if "lora_B" in name else each for name, each in raw.items()}
    raw["head.weight"].normal_()
    write_adapter(reader, raw, tmp_path / "peft")
    base, merged = two_networks(experiment)
    base.load_state_dict({name: each for name, each in raw.items() if "lora_" not in name})
    merged.load_state_dict(reader.merge(raw))
    x, t = torch.randn(4, 1, 8, 8), torch.rand(4)
    before = base(x, t)
    opened = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft"))
    torch.testing.assert_close(opened(x, t), merged(x, t), rtol=1e-4, atol=1e-4)
    assert (merged(x, t) - before).abs().max() > 0.1


def test_a_fork_adapts_a_finished_run_and_exports_both_forms(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    parent = ditlab.train(small(name="base"), local=True, warn=print)
    experiment = tuned(of=lambda **more: small(name="tuned", **more))
    notes = ditlab.plan_training(experiment, local=True).notes
    counts = ditlab.count_parameters(experiment)
    shown = f"({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
    assert f"{counts.total:,} parameters {shown}" in notes[0]
    assert counts.trainable == 2 * 3 * (32 + 96 + 32 + 32 + 32 + 128 + 128 + 32)
    assert counts.total > counts.frozen > 0
    result = ditlab.train(experiment, local=True, start_from="base", weights_only=True, warn=print)
    run = ditlab.open_run(result.run_id)
    logged = JournalFacts.of(read_content(run.folder.journal)).params
    assert logged["parameters.trainable"] == str(counts.trainable)
    assert logged["parameters.frozen"] == str(counts.frozen)
    start = load_file(ditlab.open_run(parent.run_id).export(tmp_path / "base").files[0])
    merged = load_file(run.export(tmp_path / "merged").files[0])
    assert merged.keys() == start.keys()
    changed = sorted(name for name in start if not torch.equal(start[name], merged[name]))
    layers = ("attention.out", "attention.qkv", "mlp.hidden", "mlp.out")
    assert changed == [f"blocks.{n}.{name}.weight" for n in (0, 1) for name in layers]
    weights, config = run.export(tmp_path / "peft", format="peft").files
    adapters, config = load_file(weights), json.loads(config.read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 6.0, "LORA")
    name = "blocks.1.mlp.out"
    assert name in config["target_modules"] and len(adapters) == 16
    a, b = (adapters[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
    torch.testing.assert_close(
        start[f"{name}.weight"] + 2.0 * b @ a, merged[f"{name}.weight"], rtol=0, atol=1e-7
    )
    longer = experiment.replace("training.steps", 9)
    frozen = small(name="frozen", training={"steps": 9, "freeze": ["head"]})
    for spec, words in (
        (longer, "has other parameters than this network and loss in 16 tensors"),
        (frozen, "leave other parameters frozen than those of run .*head.bias"),
    ):
        with pytest.raises(UserError, match=words):
            ditlab.train(spec, local=True, start_from="base", warn=print)
    more = experiment.replace_all({"name": "more", "training.freeze": ["blocks"]})
    more = ditlab.train(more, local=True, warn=print)
    for run_id, words in (
        (parent.run_id, "this run has none; leave --format out"),
        (more.run_id, r"trained \d+ tensors of the base too, such as final_norm.bias"),
    ):
        with pytest.raises(UserError, match=words):
            ditlab.open_run(run_id).export(tmp_path / run_id, format="peft")


def test_an_adapter_is_drawn_by_its_name_alone():
    found = []
    for targets in (["*"], ["blocks.1.mlp.out"]):
        network = module_for(tuned(lora={**LORA, "targets": targets})).network
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
        ({"lora": {"targets": ["final_norm"]}}, {}, "lora.targets='final_norm' matches no Linear"),
        ({"lora": {"targets": []}}, {}, "training.lora.targets=[] names no Linear; name some"),
        ({"lora": {"rank": 0, "targets": ["*"]}}, {}, "training.lora.rank=0 must be at least 1"),
        ({"lora": {"rank": 2}}, {}, "training.lora.targets"),
        ({}, {"haed": 2.0}, "optimizer.lr_patterns='haed' matches no trained parameter"),
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
    with pytest.raises(UserError) as caught:
        build_model(validate_experiment(spec))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_rank_and_frozen_blocks_are_axes_of_a_sweep():
    training = {"steps": 6, "lora": {"rank": 2, "targets": ["blocks.*"]}}
    base = {**TINY, "training": training, "evaluation": {"every": 3}}
    frozen = {"kind": "grid", "values": [["blocks.0"], ["blocks.0", "blocks.1"]]}

    def check(*ranks):
        axes = {"training.lora.rank": {"kind": "grid", "values": ranks}, "training.freeze": frozen}
        check_sweep(sweep_of(axes, base=base, search={"kind": "grid"}, trials=None), "sweep")

    check(2, 4)
    with pytest.raises(UserError, match=r"training\.lora\.rank"):
        check(0)
