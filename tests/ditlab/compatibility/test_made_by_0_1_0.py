"""Runs, checkpoints, a sweep and exports that version 0.1.0 made before its modules moved: all of them stay usable.

`made_by_0_1_0/home` holds two finished runs of 4 steps (`old-dit`, `old-region`) and a sweep that was interrupted in
its second trial of three; `exports` a model of each family; `samples` what `ditlab sample --num 2 --seed 3` drew;
`losses_of_8_steps.json` the losses of the same specs trained for 8 steps without a stop.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ditlab
from ditlab.home import Home
from ditlab.tracking.records import list_runs
from support import databases

MADE = Path(__file__).parent / "made_by_0_1_0"
FAMILIES = sorted(path.name for path in (MADE / "exports").iterdir())
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # another processor sums in another order; on the same one the bits are equal


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_template: Path) -> Path:
    """A copy of the home as DITLAB_HOME, with an empty MLflow database."""
    root = tmp_path / "home"
    shutil.copytree(MADE / "home", root)
    monkeypatch.setenv("DITLAB_HOME", str(root))
    return databases.seed(root, mlflow_template)


@pytest.mark.parametrize("name", ["old-dit", "old-region"])
def test_a_run_resumes_on_the_curve_of_an_unbroken_one(home: Path, name: str) -> None:
    run = ditlab.open_run(name)
    longer = run.spec.replace_all({"training.steps": 8, "evaluation.samples": 0})
    result = ditlab.train(longer, local=True, resume=run.id)
    assert (result.run_id, result.status, result.step) == (run.id, "finished", 8)
    table = run.refresh().metrics("train/loss").to_pydict()
    losses = dict(zip(table["step"], table["train/loss"], strict=True))
    expected = {
        int(step): loss for step, loss in json.loads((MADE / "losses_of_8_steps.json").read_text())[name].items()
    }
    assert losses.keys() == expected.keys()
    assert losses == pytest.approx(expected, rel=TOLERANCE["rtol"])


@pytest.mark.parametrize("family", ["dit", "region"])
def test_a_run_samples_what_it_sampled(home: Path, family: str) -> None:
    samples = ditlab.open_run(f"old-{family}").sample(2, seed=3)
    expected = load_file(MADE / "samples" / f"{family}.safetensors")
    torch.testing.assert_close(samples.values, expected["values"], **TOLERANCE)


def test_runs_are_listed_and_compared(home: Path) -> None:
    assert {run.name for run in ditlab.find_runs()} >= {"old-dit", "old-region", "old-sweep-000", "old-sweep-001"}
    comparison = ditlab.compare("old-dit", "old-region", "old-sweep-000", samples=0, grid=1, warn=print)
    assert [run.name for run in comparison.runs] == ["old-dit", "old-region", "old-sweep-000"]
    assert all(file.is_file() for file in comparison.files)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_loads_and_samples(family: str) -> None:
    model = ditlab.load_export(MADE / "exports" / family)
    assert model.spec.model.family == family and model.step == 4
    weights = load_file(MADE / "exports" / family / "weights.safetensors")
    assert weights.keys() == model.network.state_dict().keys()
    expected = load_file(MADE / "samples" / f"{family}.safetensors")["values"]
    if model.sampler.takes_rows == "none":
        torch.testing.assert_close(model.sample(2, seed=3).values, expected, **TOLERANCE)
    if model.sampler.draws_per_prompt:  # the old samples took their captions from rows
        assert model.sample(1, seed=3, prompts=["a red seven"]).values.shape[1:] == expected.shape[1:]


def test_a_sweep_is_read_with_its_trials(home: Path) -> None:
    trials = ditlab.plan_sweep(resume="old-sweep").to_dict()["trials"]
    assert [trial["values"] for trial in trials] == [{"optimizer.lr": lr} for lr in (1e-3, 1e-4, 1e-5)]


@pytest.mark.slow
def test_a_sweep_resumes(home: Path, ray: Any) -> None:
    before = {run.run_id for run in list_runs(Home(home)) if run.name.startswith("old-sweep")}
    result = ditlab.tune(resume="old-sweep")
    assert result.to_dict()["status"] == "finished"
    runs = {run.run_id: run for run in list_runs(Home(home)) if run.name.startswith("old-sweep")}
    assert before <= runs.keys() and len(runs) == 4  # the sweep and its three trials: none was begun a second time
    assert {run.status for run in runs.values()} == {"finished"}
