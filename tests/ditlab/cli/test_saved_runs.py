"""`sample`, `evaluate`, `export`, `figures` on a run that has finished."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ditlab.api.analysis import figures
from ditlab.home import Home
from ditlab.receipts.records import EVALUATION_TAG, TAG_PREFIX
from support.documents import CHECKOUT
from support.journals import read_records
from support.python_process import run_python


@pytest.fixture
def sample(with_run, tmp_path):
    """`sample(*words)`: the values that are drawn."""

    def draw(*words):
        with_run("sample", "small", *words, "--out", tmp_path).ok()
        return load_file(tmp_path / "samples.safetensors")["values"]

    return draw


def test_samples_are_those_of_the_evaluations(finished, sample, tmp_path):
    sample("--num", "4")
    during = finished.home / "train" / finished.run_id / "media" / "samples-00000004.png"
    with Image.open(tmp_path / "samples.png") as one, Image.open(during) as two:
        assert one.tobytes() == two.tobytes()


def test_settings_change_the_samples_and_are_checked(sample, with_run, finished):
    plain = sample("--num", "2")
    assert not torch.equal(plain, sample("--num", "2", "--solver", "heun", "--steps", "8"))
    for option, value, message in (
        ("--steps", "0", "sampling.steps=0 must be at least 1"),
        ("--label", "3", "label=3 was given to an unconditional model"),
        ("--out", finished.spec / "below", "cannot be written"),
    ):
        with_run("sample", "small", option, value).refused(message)


def test_figures_of_few_and_of_all_held_out_samples_are_told_apart(with_run):
    """Wherever both stand: the true numbers of this run. Where one stands alone: nothing."""
    evaluated = with_run("evaluate", "small").ok()
    found = re.search(
        r"eval/... is measured in training on 32 of the (\d+) held-out samples \(evaluation\.limit\), held_out/... by `ditlab evaluate` on all (\d+), so they differ\.",
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
    journal = finished.home / "train" / finished.run_id / "journal.jsonl"

    def tagged(name):
        records = read_records(journal)
        tags = [record["values"] for record in records if record["kind"] == "tags"]
        return [values[name] for values in tags if name in values]

    trained = json.loads(tagged(f"{TAG_PREFIX}eval")[0])
    asked = ((), ("--rows", "32"), ("--rows", "33"))
    whole, few, more = (with_run("evaluate", "small", *rows, "--json").json for rows in asked)
    assert few["measurements"]["eval"]["digest"] == trained["digest"]
    assert few["metrics"].items() <= whole["metrics"].items()
    assert len({each["evaluation"] for each in (whole, few, more)}) == 3
    assert tagged(EVALUATION_TAG)[-1] == whole["evaluation"]


OF_A_RUN = {"samples", "trajectory", "attention", "adaln", "loss", "schedule"}
OF_NONE = {"schedules", "embeddings-embedding_growth", "dit-time_embedding"}


@pytest.mark.parametrize("run, some", [(["small"], OF_A_RUN), ([], OF_NONE)])
def test_figures_writes_every_kind_that_it_lists(blank_pictures, with_run, tmp_path, run, some):
    kinds = with_run("figures", *run, "--list", "--json").json["kinds"]
    said = with_run("figures", *run, "--out", tmp_path, "--json").ok()
    assert some <= {Path(file).stem for file in said.json["files"]} == set(kinds)
    assert all(Path(file).stat().st_size > 0 for file in said.json["files"])


# seconds of drawing; every figure's content and every panel's drawing have quick tests of their own
@pytest.mark.slow
@pytest.mark.parametrize("run", [["small"], []])
def test_all_figures(with_run, tmp_path, run):
    said = with_run("figures", *run, "--out", tmp_path, "--json").ok()
    assert all(Path(file).stat().st_size > 500 for file in said.json["files"])


def test_a_run_ends_with_its_figures(blank_pictures, ditlab, home, spec, monkeypatch):
    monkeypatch.setattr("ditlab_models.processes.flow_figures.gaussian_velocity", None)
    command = ("train", spec, "--local", "--figures", "--set", "evaluation.samples=2", "--json")
    said = ditlab(*command).ok()
    assert said.json["status"] == "finished"
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
    assert figures().folder == Home.from_environment().root / "figures"  # not in a checkout


@pytest.mark.slow
def test_the_page_on_exports_loads_one_where_ditlab_cannot_be_imported(
    finished, with_run, tmp_path, monkeypatch
):
    """The page's block as it stands, in a process whose path holds the networks alone."""
    monkeypatch.chdir(tmp_path)
    said = with_run("export", finished.run_id, "--out", "runs/exported").ok()
    assert said.err.rstrip().endswith("print(ditlab.load_export('runs/exported').network)\"")
    page = (CHECKOUT / "docs" / "exports.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "ditlab_models").symlink_to(CHECKOUT / "models" / "ditlab_models")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    absent = "import sys\nsys.modules |= dict.fromkeys(('ditlab', 'ray', 'mlflow', 'deepspeed'))\n"
    assert run_python("-c", absent + block).stdout.startswith("torch.Size([4, ")
