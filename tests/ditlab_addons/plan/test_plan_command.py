"""`ditlab plan`: what people and programs see, and mistakes."""

import re
from dataclasses import replace

import pytest

from ditlab_addons.plan.functions import plan

SPEC = """
name: tiny
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 2, num_heads: 2}
data: {kind: digits}
batch: {size: 32}
training: {steps: 600}
evaluation: {every: null}
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC)
    return path


def test_a_table_json_and_what_to_change(ditlab, spec):
    options = "--gpu h100 --gpus 2 --price 2 --set engine.zero.stage=3"
    found = ditlab("plan", spec, *options.split(), "--json").json
    assert found["fits"] is True and found["per_gpu_bytes"] > 2**30 and found["step_seconds"] > 0
    assert found["gpu"] == "H100" and found["gpus"] == 2 and found["gpu_memory"] == 81559 * 2**20
    assert found["steps"] == 600
    assert found["run_seconds"] == pytest.approx(600 * found["recommended"]["step_seconds"])
    assert found["cost"] == pytest.approx(2 * found["gpu_hours"])
    assert found["gpu_hours"] == pytest.approx(2 * found["run_seconds"] / 3600)
    assert found["checkpoint_bytes"] == 16 * found["parameters"]
    assert len(found["settings"]) == 16
    for each in found["settings"]:
        peak = each[each["peak"]]
        assert sum(peak.values()) + each["margin_bytes"] == each["per_gpu_bytes"]
    assert found["changes"] == {}, "no other setting is faster"
    assert found["recommended"] == found["own"], "no other setting is faster"


def test_what_a_recommended_setting_changes_is_told(home, spec):
    found = plan(spec, gpu="h100")
    other = next(each for each in found.settings if each.zero.stage == 3 and each.checkpointing)
    changes = {"engine.zero.stage": 3, "engine.activation_checkpointing": True}
    assert replace(found, recommended=other).changes == changes


def test_a_table_in_80_columns(ditlab, spec):
    lines = ditlab("plan", spec).out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "recommended: stage 1" in text and "the spec's own setting fits" in text
    assert "run: 600 steps" in text and "assumed" in text


def test_what_cannot_fit_says_what_would(ditlab, spec):
    found = ditlab("plan", spec, "--gpu", "L4", "--gpu-memory", "256MiB", "--json").json
    assert found["fits"] is False and found["recommended"] is None
    assert "nothing fits" in found["why"] and "would fit with" in found["why"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "H1000"), "--gpu=H1000 is no known GPU; did you mean 'h100'?"),
        (("--gpu", ""), "--gpu= is no known GPU; known: a10, "),
        (("--gpus", "0"), "--gpus=0 leaves nothing to plan for; give 1 or more."),
        (("--gpus", "3"), "batch.size=32 is no multiple of resources.workers=3"),
        (("--gpu-memory", "0GiB"), "--gpu-memory=0GiB is no memory of a GPU; give 256MiB to 2TiB"),
        (("--gpu-memory", "80"), "--gpu-memory=80 is no memory of a GPU; give 256MiB to 2TiB"),
        (("--gpu-memory", "9000TiB"), "--gpu-memory=9000TiB is no memory of a GPU"),
    ],
)
def test_mistakes(ditlab, spec, options, message):
    ditlab("plan", spec, *options).refused(message)


@pytest.mark.slow
def test_measured_rates(ditlab, spec):
    """Real steps in a process of their own: the rates are this machine's."""
    found = ditlab("plan", spec, "--measure", "--json").json
    assert re.match(r"\d+ measured steps, 1 thread: ", found["rates"])
    assert 0 < found["step_seconds"] < 5
