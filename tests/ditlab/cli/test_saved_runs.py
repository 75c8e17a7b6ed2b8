"""`sample`, `evaluate`, `export`, `figures` on a run that has finished."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ditlab.api.analysis import figures
from ditlab.home import Home
from ditlab.receipts.records import EVALUATION_TAG, TAG_PREFIX, Measurement, differing_parts
from ditlab.training.export import load_checked
from support.documents import CHECKOUT
from support.opened import open_training_run


def drawn(said) -> torch.Tensor:
    assert said.code == 0, said.err
    (file,) = [Path(file) for file in said.json["files"] if file.endswith(".safetensors")]
    return load_file(file)["values"]


def test_sample_writes_a_picture_and_the_numbers(finished, with_run, tmp_path):
    said = with_run("sample", finished.run_id, "--num", "3", "--out", tmp_path / "out", "--json")
    assert said.out.count("\n") == 1 and said.json["run_id"] == finished.run_id
    assert {Path(file).name for file in said.json["files"]} == {
        "samples.png",
        "samples.safetensors",
    }
    assert drawn(said).shape == (3, 1, 8, 8)
    with Image.open(tmp_path / "out" / "samples.png") as picture:
        assert min(picture.size) > 8


def test_the_same_seed_gives_the_same_bytes(finished, with_run, tmp_path):
    for name in ("one", "two"):
        with_run("sample", "small", "--num", "4", "--seed", "3", "--out", tmp_path / name)
    for file in ("samples.png", "samples.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    other = with_run(
        "sample", "small", "--num", "4", "--seed", "4", "--out", tmp_path / "three", "--json"
    )
    assert not torch.equal(
        drawn(other), load_file(tmp_path / "one" / "samples.safetensors")["values"]
    )


def test_the_first_of_many_are_the_same(blank_pictures, with_run, tmp_path):
    """Beyond the number that is drawn at once, too."""
    few = drawn(with_run("sample", "small", "--num", "5", "--out", tmp_path / "few", "--json"))
    many = drawn(with_run("sample", "small", "--num", "300", "--out", tmp_path / "many", "--json"))
    assert len(many) == 300
    torch.testing.assert_close(many[:5], few, rtol=1e-5, atol=1e-5)
    assert not torch.equal(many[256:261], many[:5])


def test_samples_are_those_of_the_evaluations(finished, with_run, tmp_path):
    said = with_run("sample", "small", "--num", "4", "--out", tmp_path, "--json")
    assert said.code == 0
    during = finished.home / "train" / finished.run_id / "media" / "samples-00000004.png"
    with Image.open(tmp_path / "samples.png") as one, Image.open(during) as two:
        assert one.tobytes() == two.tobytes()


def test_solver_settings_change_the_samples_and_are_checked(finished, with_run, tmp_path):
    plain = drawn(with_run("sample", "small", "--num", "2", "--out", tmp_path / "a", "--json"))
    heun = ["--solver", "heun", "--steps", "8"]
    other = drawn(
        with_run("sample", "small", "--num", "2", *heun, "--out", tmp_path / "b", "--json")
    )
    assert not torch.equal(plain, other)
    for option, value, message in (
        ("--solver", "hein", "sampling.solver='hein' must be 'euler', 'heun'"),
        ("--steps", "0", "sampling.steps=0 must be at least 1"),
        ("--guidance", "2", "sampling.guidance=2 needs a conditional model"),
        ("--label", "3", "label=3 was given to an unconditional model"),
    ):
        said = with_run("sample", "small", option, value)
        assert (
            said.code == 2 and said.out == "" and message in said.err and said.err.count("\n") == 1
        )


def test_trajectory(finished, with_run, tmp_path):
    said = with_run("sample", "small", "--num", "2", "--trajectory", "--out", tmp_path, "--json")
    frames = load_file(tmp_path / "samples.safetensors")["trajectory"]
    assert frames.shape == (5, 2, 1, 8, 8)
    assert torch.equal(frames[-1], drawn(said))
    assert (tmp_path / "trajectory.gif").stat().st_size > 0


def test_out_that_cannot_be_made(finished, with_run):
    said = with_run("sample", "small", "--out", finished.spec / "below")
    assert said.code == 2 and "cannot be written" in said.err


def test_run_by_prefix_and_by_name(finished, with_run, tmp_path):
    for name in (finished.run_id, finished.run_id[:5], "small"):
        said = with_run("export", name, "--out", tmp_path, "--json")
        assert said.json["run_id"] == finished.run_id


def test_evaluate_logs_each_point_once(finished, with_run):
    journal = finished.home / "train" / finished.run_id / "journal.jsonl"
    first, second = with_run("evaluate", "small", "--json"), with_run("evaluate", "small", "--json")
    assert first.code == second.code == 0, second.err
    assert first.out.count("\n") == 1 and first.json == second.json
    assert set(first.json) == {
        "run_id",
        "step",
        "metrics",
        "measurements",
        "intervals",
        "differences",
        "evaluation",
    }
    assert {"held_out/velocity", "held_out/direction", "held_out/velocity_t0"} <= set(
        first.json["metrics"]
    )
    points = [
        (record["step"], name)
        for record in map(json.loads, journal.read_text().splitlines())
        if record["kind"] == "metrics"
        for name in record["values"]
    ]
    assert len(points) == len(set(points))
    assert (4, "held_out/velocity") in points


def test_figures_of_few_and_of_all_held_out_samples_are_told_apart(with_run):
    """Wherever both stand: the true numbers of this run. Where one stands alone: nothing."""
    evaluated = with_run("evaluate", "small")
    assert evaluated.code == 0, evaluated.err
    found = re.search(
        r"eval/... is measured in training on 32 of the (\d+) held-out samples \(evaluation\.limit\), held_out/... by "
        r"`ditlab evaluate` on all (\d+), so they differ\.",
        " ".join(evaluated.out.split()),
    )
    assert found and found[1] == found[2] and f"step 4, {found[1]} samples" in evaluated.out
    shown = with_run("runs", "show", "small").out
    assert found[0] in " ".join(shown.split())
    assert "so they differ" not in with_run("evaluate", "small", "--rows", "32").out


def test_evaluate_says_what_was_measured(finished, with_run):
    """An evaluation of other rows is another measurement; training's own of as many rows is the
    same one.
    """
    lines = (finished.home / "train" / finished.run_id / "journal.jsonl").read_text().splitlines()
    tags = [record["values"] for record in map(json.loads, lines) if record["kind"] == "tags"]
    trained = next(
        json.loads(values[f"{TAG_PREFIX}eval"]) for values in tags if f"{TAG_PREFIX}eval" in values
    )
    asked = ((), ("--rows", "32"), ("--rows", "33"))
    whole, few, more = (with_run("evaluate", "small", *rows, "--json").json for rows in asked)
    assert few["measurements"]["eval"]["digest"] == trained["digest"], (
        "training's own has training's name"
    )
    assert (
        few["metrics"].items() <= whole["metrics"].items()
        and "held_out/velocity" in whole["metrics"]
    )
    measured = [Measurement(**[*each["measurements"].values()][-1]) for each in (whole, few, more)]
    assert len({each.digest for each in measured}) == 3
    assert len({each["evaluation"] for each in (whole, few, more)}) == 3
    assert differing_parts(measured) == ["held-out samples"]
    lines = (finished.home / "train" / finished.run_id / "journal.jsonl").read_text().splitlines()
    tags = [record["values"] for record in map(json.loads, lines) if record["kind"] == "tags"]
    assert [values[EVALUATION_TAG] for values in tags if EVALUATION_TAG in values][-1] == whole[
        "evaluation"
    ]


def test_evaluate_does_not_depend_on_the_batches(finished, with_run):
    found = [
        with_run("evaluate", "small", "--batch", size, "--json").json["metrics"]
        for size in ("7", "256")
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_export_loads_into_a_fresh_network(finished, with_run, tmp_path):
    said = with_run("export", "small", "--out", tmp_path, "--json")
    assert said.code == 0 and said.out.count("\n") == 1
    assert {Path(file).name for file in said.json["files"]} == {"weights.safetensors", "spec.yaml"}
    experiment, network = load_checked(tmp_path, torch.device("cpu"))
    assert experiment.name == "small" and not network.training
    written = (tmp_path / "spec.yaml").read_text()
    assert str(finished.home) not in written and "sqlite" not in written

    x, t = torch.randn(3, 1, 8, 8), torch.tensor([0.1, 0.5, 0.9])
    with torch.no_grad():
        expected = (
            open_training_run("small", Home(finished.home), print)
            .saved()
            .network(torch.device("cpu"))(x, t)
        )
        assert expected.abs().max() > 0
        assert torch.equal(network(x, t), expected)


def test_raw_weights_are_not_the_average(finished, with_run, tmp_path):
    for option, name in ((["--raw"], "raw"), ([], "average")):
        with_run("export", "small", "--out", tmp_path / name, *option)
    raw, average = (
        load_file(tmp_path / name / "weights.safetensors") for name in ("raw", "average")
    )
    assert raw.keys() == average.keys()
    assert any(not torch.equal(raw[name], average[name]) for name in raw)


def test_figures_writes_every_kind_that_it_lists(blank_pictures, with_run, tmp_path):
    listed = with_run("figures", "small", "--list", "--json")
    assert listed.out.count("\n") == 1
    kinds = listed.json["kinds"]
    assert {"samples", "trajectory", "attention", "adaln", "loss", "schedule"} <= set(kinds)
    said = with_run("figures", "small", "--out", tmp_path, "--json")
    assert said.code == 0, said.err
    assert {Path(file).stem for file in said.json["files"]} == set(kinds)
    assert all(Path(file).stat().st_size > 0 for file in said.json["files"])


# seconds of drawing; every figure's content and every panel's drawing have quick tests of their own
@pytest.mark.slow
def test_all_figures_of_a_run(with_run, tmp_path):
    said = with_run("figures", "small", "--out", tmp_path, "--json")
    assert said.code == 0, said.err
    assert all(Path(file).stat().st_size > 500 for file in said.json["files"])


def test_figures_without_a_run(blank_pictures, ditlab, tmp_path):
    kinds = ditlab("figures", "--list", "--json").json["kinds"]
    assert {"schedules", "embeddings-embedding_growth"} <= set(kinds) and any(
        kind.startswith("dit-") for kind in kinds
    )
    said = ditlab("figures", "--out", tmp_path / "out", "--json")
    assert said.code == 0, said.err
    assert {Path(file).stem for file in said.json["files"]} == set(kinds)
    assert all(Path(file).stat().st_size > 0 for file in said.json["files"])


def test_some_figures_without_a_run(ditlab, tmp_path):
    kinds = ("schedules", "dit-time_embedding")
    words = [word for kind in kinds for word in ("--kind", kind)]
    said = ditlab("figures", "--out", tmp_path / "out", *words, "--json")
    assert said.code == 0, said.err
    assert {Path(file).stem for file in said.json["files"]} == set(kinds)
    assert all(Path(file).stat().st_size > 500 for file in said.json["files"])
    assert figures().folder == Home.from_environment().root / "figures", (
        "a checkout is left as it was"
    )
    growth = figures().draw("embeddings-embedding_growth")  # a figure of many frames
    assert growth is not None and len(growth.figure.frames) > 5 and growth.image.width > 100


@pytest.mark.slow
def test_all_figures_without_a_run(ditlab, tmp_path):
    said = ditlab("figures", "--out", tmp_path / "out", "--json")
    assert said.code == 0, said.err
    assert all(Path(file).stat().st_size > 500 for file in said.json["files"])


def test_one_kind_alone(finished, with_run, tmp_path):
    said = with_run("figures", "small", "--kind", "schedule", "--out", tmp_path, "--json")
    assert [Path(file).name for file in said.json["files"]] == ["schedule.png", "schedule.svg"]


def test_a_run_ends_with_its_figures(blank_pictures, ditlab, home, spec, monkeypatch):
    monkeypatch.setattr("ditlab_models.processes.flow_figures.gaussian_velocity", None)
    said = ditlab("train", spec, "--local", "--figures", "--set", "evaluation.samples=2", "--json")
    assert said.code == 0 and said.json["status"] == "finished"
    assert "figure loss_by_time was not drawn" in said.err
    folder = home / "train" / said.json["run_id"] / "media" / "figures"
    names = {file.name for file in folder.iterdir()}
    assert {"loss.png", "loss.svg", "attention.png", "trajectory.gif", "forward_pass.svg"} <= names
    assert "loss_by_time.png" not in names


def test_formats(blank_pictures, ditlab, tmp_path):
    words = ("figures", "--kind", "schedules", "--out", tmp_path, "--json")
    said = ditlab(*words, "--format", "svg", "--format", "png")
    names = [Path(file).name for file in said.json["files"]]
    assert names == ["schedules.svg", "schedules.png"]
    assert ditlab(*words, "--format", "gif").code == 2


@pytest.mark.slow
def test_the_page_on_exports_loads_one_where_ditlab_cannot_be_imported(
    finished, with_run, tmp_path, monkeypatch
):
    """The page's block as it stands, in a process whose path holds the networks alone."""
    monkeypatch.chdir(tmp_path)
    said = with_run("export", finished.run_id, "--out", "runs/exported")
    assert said.code == 0 and said.err.rstrip().endswith(
        "print(ditlab.load_export('runs/exported').network)\""
    ), said.err
    page = (CHECKOUT / "docs" / "exports.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "ditlab_models").symlink_to(CHECKOUT / "models" / "ditlab_models")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    absent = (
        "import sys\nsys.modules.update(dict.fromkeys(('ditlab', 'ray', 'mlflow', 'deepspeed')))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", absent + block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 0 and found.stdout.startswith("torch.Size([4, "), found.stderr
