"""`ditlab profile`: what a step's time is given to, and mistakes."""

import gzip
import json

import pytest

SPEC = """
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 3, num_heads: 2}
data: {kind: digits}
batch: {size: 16, micro: 8}
training: {steps: 10}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.mark.slow
def test_a_step_is_told_by_phase_module_and_operator_and_leaves_no_run(ditlab, spec, tmp_path):
    told = ditlab("profile", spec, "--steps", "2", "--json", "--out", tmp_path / "out").ok().json
    assert told["num_steps"] == 2
    assert {*told["phases"]} == {"data", "forward", "backward", "reduce", "update"}
    assert 0 < sum(each["seconds"] for each in told["operators"]) <= told["step_seconds"]
    modules = {each["name"]: each for each in told["modules"]}
    qkv = modules["blocks.*.attention.qkv"]
    assert qkv["seconds"] > 0 and qkv["num_calls"] == 2 * 3  # two passes of three blocks
    products = {each["name"]: each for each in told["operators"]}["addmm"]
    # two passes a step
    assert products["flops"] > 0 and products["num_calls"] == pytest.approx(2 * (2 + 3 * 6 + 1))
    with gzip.open(tmp_path / "out/trace.json.gz") as file:
        assert any(
            event.get("name") == "module: blocks.*.mlp" for event in json.load(file)["traceEvents"]
        )
    assert not list((tmp_path / "home").rglob("journal*"))
    assert not list((tmp_path / "home").rglob("manifest.json"))


def test_no_gpu(ditlab, spec):
    ditlab("profile", spec, "--set", "resources.gpus_per_worker=1").refused(
        "this machine has no GPU to profile on; set resources"
    )


def test_a_file_in_the_folders_place(ditlab, spec, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "below"
    ditlab("profile", spec, "--out", out).refused(f"--out {out} cannot be written")
