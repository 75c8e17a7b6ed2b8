"""`ditlab profile`: what a step's time is given to, and mistakes."""

import gzip
import json

import pytest
from click.testing import CliRunner

from ditlab.cli.main import cli
from support.damage import refused

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


def test_no_gpu(spec):
    with refused("this machine has no GPU to profile on; set resources"):
        invoke(spec, "--set", "resources.gpus_per_worker=1")


def test_a_file_in_the_folders_place(spec, tmp_path):
    (tmp_path / "file").write_text("")
    with refused(r"--out .* cannot be written"):
        invoke(spec, "--out", tmp_path / "file" / "below")
