"""`ditlab profile`: what a step's time is given to, and mistakes."""

import gzip
import json

import pytest
from click.testing import CliRunner
from PIL import Image

from ditlab.cli.main import cli
from ditlab.errors import UserError
from ditlab_addons.plan.profiling import (
    OUTSIDE,
    OperatorEvent,
    Profile,
    kind_of,
    module_times,
    operator_times,
    profile_figure,
    profile_lines,
)

SPEC = """
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 3, num_heads: 2}
data: {kind: digits}
batch: {size: 16, micro: 8}
training: {steps: 10}
"""


@pytest.fixture(name="spec")
def spec_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def invoke(*arguments):
    return CliRunner().invoke(cli, ["profile", *map(str, arguments)], catch_exceptions=False)


def test_a_step_is_told_by_phase_module_and_operator_and_leaves_no_run(spec, tmp_path):
    found = invoke(spec, "--steps", "2", "--json", "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    told = json.loads(found.output.splitlines()[-1])
    assert told["steps"] == 2 and set(told["phases"]) == {"data", "forward", "backward", "reduce", "update"}
    operators = sum(each["seconds"] for each in told["operators"])
    assert 0 < operators <= told["step_seconds"]
    assert sum(told["kinds"].values()) == pytest.approx(operators)
    assert sum(each["forward"] + each["backward"] for each in told["modules"]) == pytest.approx(operators)
    modules = {each["path"]: each for each in told["modules"]}
    qkv = modules["blocks.*.attention.qkv"]
    assert qkv["num_modules"] == 3 and qkv["forward"] > 0 and qkv["backward"] > 0  # both passes, of all blocks
    products = {each["name"]: each for each in told["operators"]}["aten::addmm"]
    assert products["flops"] > 0 and products["num_calls"] == pytest.approx(2 * (2 + 3 * 6 + 1))  # two passes a step
    assert Image.open(tmp_path / "out/profile.png").width > 300
    with gzip.open(tmp_path / "out/trace.json.gz") as file:
        assert any(event.get("name") == "module: blocks.1.mlp" for event in json.load(file)["traceEvents"])
    assert not list((tmp_path / "home").rglob("journal*")) and not list((tmp_path / "home").rglob("manifest.json"))


@pytest.mark.parametrize(("arguments", "message"), [
    (("--steps", "0"), "--steps=0 is not between 1 and 20"),
    (("--steps", "21"), "--steps=21 is not between 1 and 20"),
    (("--set", "resources.gpus_per_worker=1"), "this machine has no GPU to profile on; set resources.gpus_per_worker"),
    (("--set", "model.dpeth=3"), "did you mean 'depth'?"),
])  # fmt: skip
def test_mistakes(spec, arguments, message):
    with pytest.raises(UserError) as caught:
        invoke(spec, *arguments)
    assert message in str(caught.value)


def test_a_file_in_the_folders_place(spec, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .* cannot be written"):
        invoke(spec, "--out", tmp_path / "file" / "below")


EVENTS = [
    OperatorEvent("aten::mm", "blocks.0.mlp", False, 0.2, 4_000_000_000),
    OperatorEvent("aten::mm", "blocks.1.mlp", True, 0.4, 8_000_000_000),
    OperatorEvent("aten::gelu", "blocks.1.mlp", False, 0.1, 0),
    OperatorEvent("aten::_fused_adamw_", OUTSIDE, False, 0.3, 0),
]


def test_sums_shares_and_rates(tmp_path):
    operators, modules = operator_times(EVENTS, 2), module_times(EVENTS, 2)
    assert [(each.name, each.seconds, each.num_calls) for each in operators] == [
        ("aten::mm", pytest.approx(0.3), 1.0), ("aten::_fused_adamw_", 0.15, 0.5), ("aten::gelu", 0.05, 0.5),
    ]  # fmt: skip
    assert (modules[0].path, modules[0].num_modules) == ("blocks.*.mlp", 2)
    assert (modules[0].forward, modules[0].backward) == (pytest.approx(0.15), pytest.approx(0.2))
    phases = {"data": 0.0, "forward": 0.25, "backward": 0.25, "reduce": 0.0, "update": 0.1}
    profile = Profile("name", "cpu", 2, 1, phases, operators, modules, 40e9, tmp_path / "trace")
    lines = "\n".join(profile_lines(profile))
    assert "matrix products 60%, optimiser 30%, elementwise 10%" in lines
    assert "blocks.*.mlp (all 2): 350.0 ms, 70% of all" in lines
    assert "ran at 20 GFLOP/s, 50% of a large matrix product's 40 here" in lines
    assert [list(panel.names) for panel in profile_figure(profile).panels][1] == ["blocks.*.mlp", OUTSIDE]


@pytest.mark.parametrize(("name", "kind"), [
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
    ("aten::addmm", "matrix products"), ("ampere_bf16_s16816gemm_bf16_128x128", "matrix products"),
    ("aten::convolution_backward", "convolutions"), ("aten::native_layer_norm", "normalisation"),
    ("aten::_fused_adamw_", "optimiser"), ("aten::copy_", "copies and layout"), ("aten::mul", "elementwise"),
    ("aten::t", "views and bookkeeping"), ("aten::tanh", "elementwise"),
])  # fmt: skip
def test_kinds_of_work(name, kind):
    assert kind_of(name) == kind
