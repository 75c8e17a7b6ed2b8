"""Runs that train a part of their network: exact resume, checkpoints, averages, forks, exports,
counts, refusals.
"""

import json

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
from ditlab.spec.sweep import build_sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab_addons.interop.adapter_export import write_adapter
from ditlab_models.finetuning import fine_tune
from support.trainings.engines import module_for
from support.trainings.forks import small
from support.trainings.workers import TINY, newest, tiny, train_here

LORA = {"rank": 3, "alpha": 6.0, "targets": ["blocks.*.attention", "*.mlp"]}


BLOCKS = ["blocks"]
"""All that is frozen of a fresh network: its head begins at zero, and frozen would let no gradient
through.
"""


def tuned(stage=1, precision="fp32", of=tiny, **training):
    training = {"steps": 6, "ema": {"decay": 0.9}, "precision": precision, "lora": LORA, **training}
    return of(engine__zero={"stage": stage}, training=training, optimizer={"lr": 1e-2})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        (0, "fp32"),
        (3, "bf16"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16")]
        ),
    ],
)
def test_resume_is_bit_identical_and_a_checkpoint_holds_the_base_once(
    data, tmp_path, stage, precision
):
    experiment = tuned(stage, precision, averages={"lengths": [0.1]}, freeze=BLOCKS)
    train_here(experiment, data, tmp_path / "whole")
    assert train_here(experiment, data, tmp_path / "half", stop_after=4)[0].step == 4
    train_here(experiment, data, tmp_path / "half")
    one, two = newest(tmp_path / "whole"), newest(tmp_path / "half")
    assert (
        one.manifest.shapes == two.manifest.shapes and one.manifest.scalars == two.manifest.scalars
    )
    for name, shape in one.manifest.shapes.items():
        fields = {field for _, field, owner, *_ in one.manifest.pieces if owner == name}
        trained, is_frozen = (
            {"master", "exp_avg", "exp_avg_sq", "ema", "power_0.1"},
            "blocks." in name,
        )
        assert fields == (trained if "lora_" in name or not is_frozen else {"frozen"}), name
        if name.endswith("lora_B"):
            assert one.read("master", name, 0, 1).any()
        numel = torch.Size(shape).numel()
        for field in fields:
            assert torch.equal(one.read(field, name, 0, numel), two.read(field, name, 0, numel)), (
                field,
                name,
            )


def test_merged_weights_compute_what_the_adapted_network_does(data, tmp_path):
    """Trained ones, averages, and averages that are rebuilt."""
    experiment = tuned(averages={"lengths": [0.1, 0.2], "snapshots": 4}, freeze=BLOCKS)
    train_here(experiment, data, tmp_path / "run")
    store = CheckpointStore.at(tmp_path / "run")
    with store.open(6) as reader, open_averages(store, reader, print) as kept:
        rebuilt = kept.rebuild(PowerProfile(0.15))
        sources = [
            (reader.weights, {"averaged": False}),
            (reader.weights, {}),
            (rebuilt.weights, {}),
        ]
        found = [(weights(merged=False, **how), weights(**how)) for weights, how in sources]
    base, adapted = (experiment.family.build_network(experiment.model).eval() for _ in range(2))
    fine_tune(adapted, None, experiment.training, len)
    x, t, outputs = torch.randn(4, 1, 8, 8), torch.rand(4), list[torch.Tensor]()
    for own, merged in found:
        adapted.load_state_dict(own)
        base.load_state_dict(merged)
        with torch.no_grad():
            outputs.append(base(x, t))
            torch.testing.assert_close(outputs[-1], adapted(x, t), rtol=1e-6, atol=1e-6)
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


def test_peft_opens_the_adapter_and_computes_the_same(data, tmp_path):
    peft = pytest.importorskip("peft")
    experiment = tuned(lora={**LORA, "targets": ["*.mlp", "*.attention.out"]}, freeze=["*"])
    train_here(experiment, data, tmp_path / "run")
    reader = newest(tmp_path / "run")
    raw = reader.weights(merged=False)
    raw = {name: torch.randn_like(each) if "lora_B" in name else each for name, each in raw.items()}
    raw["head.weight"].normal_()
    write_adapter(reader, raw, tmp_path / "peft")
    base, merged = (experiment.family.build_network(experiment.model).eval() for _ in range(2))
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
    assert (
        f"{counts.total:,} parameters ({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
        in notes[0]
    )
    assert (
        counts.trainable == 2 * 3 * (32 + 96 + 32 + 32 + 32 + 128 + 128 + 32)
        and counts.total > counts.frozen > 0
    )
    result = ditlab.train(experiment, local=True, start_from="base", weights_only=True, warn=print)
    run = ditlab.open_run(result.run_id)
    logged = JournalFacts.of(read_content(run.folder.journal)).params
    assert logged["parameters.trainable"] == str(counts.trainable)
    assert logged["parameters.frozen"] == str(counts.frozen)
    start = load_file(ditlab.open_run(parent.run_id).export(tmp_path / "base").files[0])
    merged = load_file(run.export(tmp_path / "merged").files[0])
    assert merged.keys() == start.keys()
    changed = {name for name in start if not torch.equal(start[name], merged[name])}
    assert changed == {
        f"blocks.{n}.{name}.weight"
        for n in (0, 1)
        for name in ("attention.qkv", "attention.out", "mlp.hidden", "mlp.out")
    }
    weights, config = run.export(tmp_path / "peft", format="peft").files
    adapters, config = load_file(weights), json.loads(config.read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 6.0, "LORA")
    name = "blocks.1.mlp.out"
    assert name in config["target_modules"] and len(adapters) == 16
    a, b = (adapters[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
    torch.testing.assert_close(
        start[f"{name}.weight"] + 2.0 * b @ a, merged[f"{name}.weight"], rtol=0, atol=1e-7
    )
    with pytest.raises(
        UserError, match=r"has other parameters than this network and loss in 16 tensors"
    ):
        ditlab.train(
            experiment.replace("training.steps", 9), local=True, start_from="base", warn=print
        )
    frozen = small(name="frozen", training={"steps": 9, "freeze": ["head"]})
    with pytest.raises(
        UserError, match=r"leave other parameters frozen than those of run .*head.bias"
    ):
        ditlab.train(frozen, local=True, start_from="base", warn=print)
    with pytest.raises(UserError, match="this run has none; leave --format out"):
        ditlab.open_run(parent.run_id).export(tmp_path / "none", format="peft")
    more = ditlab.train(
        experiment.replace_all({"name": "more", "training.freeze": ["blocks"]}),
        local=True,
        warn=print,
    )
    with pytest.raises(
        UserError, match=r"trained \d+ tensors of the base too, such as final_norm.bias"
    ):
        ditlab.open_run(more.run_id).export(tmp_path / "more", format="peft")


def test_an_adapter_is_drawn_by_its_name_alone():
    found = []
    for targets in (["*"], ["blocks.1.mlp.out"]):
        network = module_for(tuned(lora={**LORA, "targets": targets})).network
        found.append(network.blocks[1].mlp.out.lora_A)
    assert torch.equal(*found)


def test_defaults_change_no_hash():
    spec = {"steps": 6, "ema": {"decay": 0.9}, "freeze": None, "lora": None}
    assert (
        tiny(training=spec, optimizer={"lr": 1e-3, "lr_patterns": {}}).content_hash()
        == "0ee1eb77b1c0eac0"
    )
    others = [{"freeze": ["head"]}, {"lora": LORA}, {"lora": {**LORA, "rank": 4}}]
    assert len({tiny(training={**spec, **each}).content_hash() for each in [{}, *others]}) == 4


@pytest.mark.parametrize(
    ("training", "optimizer", "message"),
    [
        (
            {"freeze": ["blocs.0"]},
            {},
            "training.freeze='blocs.0' matches no parameter; names here are like blocks.0",
        ),
        (
            {"freeze": ["*"]},
            {},
            "training.freeze=['*'] freezes every parameter; leave some to train, or adapt",
        ),
        ({"freeze": [""]}, {}, "training.freeze.0=''"),
        (
            {"lora": {**LORA, "targets": ["blocks.0.atention"]}},
            {},
            (
                "training.lora.targets='blocks.0.atention' matches no Linear of the network; "
                "names here are like"
            ),
        ),
        (
            {"lora": {**LORA, "targets": ["final_norm"]}},
            {},
            "training.lora.targets='final_norm' matches no Linear",
        ),
        (
            {"lora": {**LORA, "targets": []}},
            {},
            "training.lora.targets=[] names no Linear; name some",
        ),
        ({"lora": {"rank": 0, "targets": ["*"]}}, {}, "training.lora.rank=0 must be at least 1"),
        ({"lora": {"alpha": 0, "targets": ["*"]}}, {}, "training.lora.alpha=0 must be above 0"),
        ({"lora": {"rank": 2}}, {}, "training.lora.targets"),
        (
            {},
            {"lr_patterns": {"haed": 2.0}},
            "optimizer.lr_patterns='haed' matches no trained parameter",
        ),
        (
            {"freeze": ["head"]},
            {"lr_patterns": {"head": 2.0}},
            "optimizer.lr_patterns='head' matches no trained parameter",
        ),
        ({}, {"lr_patterns": {"head": 0}}, "optimizer.lr_patterns.head=0 must be above 0"),
    ],
)
def test_refusals(training, optimizer, message):
    spec = {**TINY, "training": {"steps": 6, **training}, "optimizer": optimizer}
    with pytest.raises(UserError) as caught:
        build_model(validate_experiment(spec))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_rank_and_frozen_blocks_are_axes_of_a_sweep():
    lora = {"rank": 2, "targets": ["blocks.*"]}
    spec = {
        "name": "ranks",
        "metric": "eval/velocity",
        "mode": "min",
        "base": {**TINY, "training": {"steps": 6, "lora": lora}},
        "space": {
            "training.lora.rank": {"kind": "grid", "values": [2, 4]},
            "training.freeze": {"kind": "grid", "values": [["blocks.0"], ["blocks.0", "blocks.1"]]},
        },
        "search": {"kind": "grid"},
    }
    spec["base"]["evaluation"] = {"every": 3}
    sweep = build_sweep(spec, "sweep")
    check_sweep(sweep, "sweep")
    with pytest.raises(UserError, match=r"training.lora.rank"):
        check_sweep(
            build_sweep(
                {**spec, "space": {"training.lora.rank": {"kind": "grid", "values": [0]}}}, "s"
            ),
            "s",
        )
