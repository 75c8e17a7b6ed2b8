"""`ditlab plan`: what people and programs see, and mistakes."""

import json
import os
import re

import pytest
from click.testing import CliRunner

from ditlab.cli.main import cli
from ditlab.errors import UserError
from ditlab.spec.files import load_experiment

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
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC)
    return path


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", *map(str, arguments)], catch_exceptions=False)


def test_a_table_json_a_picture_and_a_spec(spec, tmp_path):
    target, picture = tmp_path / "sub" / "planned.yaml", tmp_path / "memory.png"
    target.parent.mkdir()
    options = ("--gpu", "h100", "--gpus", "2", "--price", "2", "--json", "--out", picture, "--apply", target)
    shown = run(spec, *options)
    found = json.loads(shown.stdout.splitlines()[-1])
    assert found["fits"] is True and found["per_gpu_bytes"] > 2**30 and found["step_seconds"] > 0
    assert found["gpu"] == "H100" and found["gpus"] == 2 and found["gpu_memory"] == 81559 * 2**20
    assert found["steps"] == 600 and found["run_seconds"] == pytest.approx(600 * found["recommended"]["step_seconds"])
    assert found["cost"] == pytest.approx(2 * found["gpu_hours"])
    assert found["gpu_hours"] == pytest.approx(2 * found["run_seconds"] / 3600)
    assert found["checkpoint_bytes"] == 16 * found["parameters"]
    assert len(found["settings"]) == 18
    for each in found["settings"]:
        peak = each[each["peak"]]
        assert sum(peak.values()) + each["margin_bytes"] == each["per_gpu_bytes"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = load_experiment(target, ())
    assert written.engine.zero.stage == found["recommended"]["stage"]
    assert (written.resources.workers, written.resources.gpus_per_worker) == (2, 1)
    assert target.read_text().startswith("extends: ../tiny.yaml")
    run(spec, *options)  # the same once more
    with pytest.raises(UserError, match=r"--apply .* holds something else; name another file"):
        run(spec, "--gpu", "h100", "--gpus", "4", "--apply", target)


def test_a_table_in_80_columns(spec):
    lines = run(spec).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "recommended: stage 1" in text and "the spec's own setting fits" in text
    assert "run: 600 steps" in text and "assumed" in text


def test_what_cannot_fit_says_what_would(spec):
    found = json.loads(run(spec, "--gpu", "L4", "--gpu-memory", "256MiB", "--json").stdout.splitlines()[-1])
    assert found["fits"] is False and found["recommended"] is None
    assert "nothing fits" in found["why"] and "would fit with" in found["why"]
    with pytest.raises(UserError, match="--apply has no setting to write: nothing fits"):
        run(spec, "--gpu", "L4", "--gpu-memory", "256MiB", "--apply", spec.with_name("new.yaml"))
    assert not os.path.lexists(spec.with_name("new.yaml"))


def test_a_sweep_is_told_in_sum(spec, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "name: tiny-sweep\nbase: tiny.yaml\nsearch: {kind: grid}\nmetric: eval/velocity\nmode: min\n"
        "space: {model.depth: {kind: choice, values: [1, 2]}, optimizer.lr: {kind: choice, values: [1.0e-3, 1.0e-4]}}\n"
    )
    sweep.with_name("tiny.yaml").write_text(SPEC.replace("every: null", "every: 300"))
    found = json.loads(run(sweep, "--gpu", "A100", "--json", "--price", "1").stdout.splitlines()[-1])
    assert found["trials"] == 4 and found["sweep_fits"] is True
    assert found["sweep_cost"] == pytest.approx(found["sweep_gpu_hours"])
    assert found["gpu_hours"] < found["sweep_gpu_hours"] < 4 * found["gpu_hours"] * 1.001
    text = sweep.read_text().replace("optimizer.lr", "batch.size").replace("1.0e-3, 1.0e-4", "32, 9999")
    sweep.write_text(text)
    with pytest.raises(UserError, match=r"trial 1 \(.*batch.size=9999.*\): batch.size=9999 is larger than"):
        run(sweep, "--gpu", "A100")
    with pytest.raises(UserError, match="--apply is for an experiment"):
        run(sweep, "--apply", tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "H1000"), "--gpu=H1000 is no known GPU; did you mean 'h100'?"),
        (("--gpu", ""), "--gpu= is no known GPU; known: a10, "),
        (("--out", ""), "--out . names no file; give a file's path."),
        (("--out", "memory.svg"), "--out memory.svg is not the name of a PNG; give one that ends in .png."),
        (("--apply", ""), "--apply . names no file; give a file's path."),
        (("--gpu", "zzz"), "--gpu=zzz is no known GPU; known: a10, "),
        (("--gpus", "0"), "--gpus=0 leaves nothing to plan for; give 1 or more."),
        (("--gpus", "-3"), "--gpus=-3 leaves nothing to plan for"),
        (("--gpus", "3"), "batch.size=32 is no multiple of resources.workers=3"),
        (("--gpu-memory", "0GiB"), "--gpu-memory=0GiB is no memory of a GPU; give 256MiB to 2TiB"),
        (("--gpu-memory", "-1GiB"), "--gpu-memory=-1GiB is no memory of a GPU"),
        (("--gpu-memory", "80"), "--gpu-memory=80 is no memory of a GPU; give 256MiB to 2TiB"),
        (("--gpu-memory", "plenty"), "--gpu-memory=plenty is no memory of a GPU"),
        (("--gpu-memory", "9000TiB"), "--gpu-memory=9000TiB is no memory of a GPU"),
        (("--price", "nan"), "--price=nan is no price"),
        (("--price", "0"), "--price=0 is no price"),
    ],
)
def test_mistakes(spec, options, message):
    with pytest.raises(UserError) as error:
        run(spec, *options)
    assert message in str(error.value) and error.value.exit_code == 2


@pytest.mark.slow
def test_measured_rates(spec):
    """Real steps in a process of their own: the rates are this machine's."""
    found = json.loads(run(spec, "--measure", "--json").stdout.splitlines()[-1])
    assert re.match(r"\d+ measured steps, 1 thread: ", found["rates"]) and 0 < found["step_seconds"] < 5
