"""`ditlab sample` on a text-to-image run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import ditlab
from support.command import run_inside
from support.damage import refused

SPEC = """\
name: painter
model:
  {family: pixelhdm, width: 32, pixel_width: 4, patch_size: 8, patch_depth: 1, pixel_depth: 1, num_heads: 2,
   num_kv_heads: 1, bottleneck_width: 8, time_width: 8, max_resolution: 64, mrope_widths: [4, 6, 6],
   text_encoder: learned, text_length: 24, text_depth: 1}
objective: {weights: {velocity: 1.0, frequency: 0.0, alignment: 0.0}}
data: {kind: captioned_digits, colours: 1}
batch: {size: 8}
training: {steps: 2}
evaluation: {every: 2, samples: 4, limit: 8}
sampling: {steps: 2, height: 16, width: 16, guidance: 2.0}
tracking: {system_metrics: false}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The DITLAB_HOME of a run named `painter`."""
    folder = tmp_path_factory.mktemp("painter")
    (folder / "painter.yaml").write_text(SPEC)
    run_inside("train", "painter.yaml", "--local", home=folder / "home", cwd=folder).ok()
    return folder / "home"


@pytest.fixture
def sample(trained):
    return lambda *words: run_inside("sample", "painter", *words, "--json", home=trained)


def pictures(said):
    assert said.code == 0, said.err
    return [Path(file) for file in said.json["files"] if Path(file).stem.isdigit()]


def texts(file):
    with Image.open(file) as image:
        return {name.removeprefix("ditlab."): text for name, text in image.text.items()}


def test_a_file_for_each_sample_and_its_seed_draws_it_again(sample, tmp_path):
    prompts = ("--prompt", "a red two", "--prompt", "ein Würfel")
    said = sample(*prompts, "--num", "2", "--seed", "7", "--out", tmp_path / "a")
    files = pictures(said)
    told = [texts(file) for file in files]
    assert [one["prompt"] for one in told] == ["a red two"] * 2 + ["ein Würfel"] * 2
    assert [one["seed"] for one in told] == ["7", "8", "7", "8"]
    one = ("--num", "1", "--seed", "8", "--out", tmp_path / "b")
    (again,) = pictures(sample("--prompt", "ein Würfel", *one))
    with Image.open(files[3]) as one, Image.open(again) as other:
        assert np.abs(np.asarray(one, int) - np.asarray(other, int)).max() <= 1
    assert load_file(tmp_path / "a" / "samples.safetensors")["values"].shape == (4, 3, 16, 16)


def test_without_prompts_held_out_captions_are_drawn_as_in_evaluations(trained, sample, tmp_path):
    files = pictures(sample("--num", "4", "--out", tmp_path))
    assert all(texts(file)["prompt"].startswith("a red ") for file in files)
    (run,) = (trained / "train").iterdir()
    drawn = run / "media" / "samples-00000002.png"
    with Image.open(tmp_path / "samples.png") as one, Image.open(drawn) as other:
        assert one.tobytes() == other.tobytes()


def test_from_a_picture_in_another_size(sample, tmp_path):
    Image.new("RGB", (30, 20), (255, 0, 0)).save(tmp_path / "red.png")
    start = ("--start", tmp_path / "red.png", "--strength", "0.05", "--size", "24x8")
    words = (*start, "--prompt", "a", "--num", "1", "--trajectory", "--out", tmp_path / "out")
    (file,) = pictures(sample(*words))
    expected = {"strength": "0.05", "start": "red.png", "size": "24x8", "steps": "2"}
    assert texts(file).items() >= expected.items()
    frames = load_file(tmp_path / "out" / "samples.safetensors")["trajectory"]
    assert frames.shape == (3, 1, 3, 24, 8)  # the noised picture, a step, the projection
    red = torch.tensor([1.0, -1.0, -1.0])
    torch.testing.assert_close(frames[0].mean((0, 2, 3)), 0.905 * red, rtol=0, atol=0.05)
    assert (tmp_path / "out" / "trajectory.gif").stat().st_size > 0


def test_runs_and_exports_give_images_in_python(trained, monkeypatch, tmp_path):
    monkeypatch.setenv("DITLAB_HOME", str(trained))
    run = ditlab.open_run("painter")
    drawn = run.sample(2, prompts=["a red two"], size=(24, 8), seed=3)
    assert [image.size for image in drawn.images] == [(8, 24)] * 2  # (width, height)
    model = ditlab.load_export(run.export(tmp_path / "export").folder, device="cpu")
    again = model.sample(2, prompts=["a red two"], size="24x8", seed=3)
    assert torch.equal(again.values, drawn.values)
    assert again.origin == {"run": "painter", "step": "2"}
    with refused("an export has none; give prompts, or use the run"):
        model.sample(2)
