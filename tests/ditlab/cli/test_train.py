"""`ditlab train --local`: its output, its files, its resumption."""

from pathlib import Path

import pytest

from support.journals import read_records


def test_one_json_object_and_nothing_else(finished):
    said = finished.said
    assert said.out.count("\n") == 1
    assert (said.json["status"], said.json["step"]) == ("finished", 4)
    assert said.json["metrics"].keys() >= {"train/loss", "train/grad_norm", "eval/velocity"}
    assert Path(said.json["checkpoint"]).name == "step-00000004"
    assert said.json["tracking_uri"] == f"sqlite:///{finished.home / 'mlflow.db'}"
    assert f"run {finished.run_id} finished: 4 steps" in said.err


def test_everything_lies_under_home(finished):
    assert {path.name for path in finished.spec.parent.iterdir()} == {"home", "small.yaml"}
    run = finished.home / "train" / finished.run_id
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000004"]


def test_resume_of_a_finished_run_does_nothing_more(finished, with_run):
    journal = finished.home / "train" / finished.run_id / "journal.jsonl"
    before = read_records(journal)
    said = with_run("train", finished.spec, "--local", "--resume", finished.run_id, "--json").ok()
    for key in ("run_id", "step", "status"):
        assert said.json[key] == finished.said.json[key]
    assert said.json["metrics"]["train/loss"] == finished.said.json["metrics"]["train/loss"]
    added = read_records(journal)[len(before) :]
    assert "metrics" not in {record["kind"] for record in added}


@pytest.mark.parametrize(
    "override, said, fork",
    [
        ("optimizer.lr=1.0", "optimizer.lr=1.0 (was 0.0001)", ["--from"]),
        ("optimizer={kind: muon, lr: 0.01}", "optimizer", ["--from", "--weights-only"]),
        ("model.depth=2", "model.depth=2 (was 1)", []),
    ],
)
def test_resume_as_another_experiment_is_refused_and_a_fork_that_takes_it_is_named(
    finished, with_run, override, said, fork
):
    changed = ["train", finished.spec, "--local", "--set", override]
    found = with_run(*changed, "--resume", finished.run_id).refused(
        "was started as another experiment", said
    )
    assert [word for word in found.err.split() if word in ("--from", "--weights-only")] == fork
    if fork:
        named = ["--from", finished.run_id, *fork[1:]]
        assert with_run(*changed, *named, "--set", "training.steps=6", "--dry-run").code == 0


def test_resume_with_fewer_steps_is_refused(finished, with_run):
    command = ("train", finished.spec, "--local", "--resume", finished.run_id)
    with_run(*command, "--set", "training.steps=3").refused("training.steps=3 is behind run")
