"""`ditlab train --local`: its output, its files, its resumption."""

import json
from pathlib import Path

import pytest


def journal(home: Path, run_id: str) -> list[dict]:
    text = (home / "train" / run_id / "journal.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_one_json_object_and_nothing_else(finished):
    said = finished.said
    assert said.out.count("\n") == 1
    assert {"run_id", "status", "step", "metrics", "checkpoint", "tracking_uri"} <= set(said.json)
    assert (said.json["status"], said.json["step"]) == ("finished", 4)
    assert {"train/loss", "train/velocity", "train/lr", "train/grad_norm", "eval/velocity"} <= set(
        said.json["metrics"]
    )
    assert Path(said.json["checkpoint"]).name == "step-00000004"
    assert said.json["tracking_uri"] == f"sqlite:///{finished.home / 'mlflow.db'}"
    assert f"run {finished.run_id} finished: 4 steps" in said.err


def test_everything_lies_under_home(finished):
    assert {path.name for path in finished.spec.parent.iterdir()} == {"home", "small.yaml"}
    run = finished.home / "train" / finished.run_id
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        "step-00000002",
        "step-00000004",
    }
    assert (run / "media" / "samples-00000004.png").stat().st_size > 0
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def test_every_step_is_in_the_journal_once(finished):
    steps = [
        r["step"]
        for r in journal(finished.home, finished.run_id)
        if "train/loss" in r.get("values", ())
    ]
    assert steps == [1, 2, 3, 4]


def test_the_runs_own_spec_is_the_experiment(finished, with_run):
    spec = finished.home / "train" / finished.run_id / "spec.yaml"
    assert with_run("show", spec).out == with_run("show", finished.spec).out


def test_dry_run_starts_nothing(ditlab, home, spec):
    said = ditlab("train", spec, "--local", "--dry-run", "--json")
    assert said.code == 0 and said.out.count("\n") == 1
    assert said.json["status"] == "dry-run" and said.json["steps"] == 4
    assert said.json["total"] == ditlab("params", spec, "--json").json["total"]
    assert "name: small" in said.err and "1 CPU worker with 1 thread" in said.err
    assert not (home / "train").exists()


def test_resume_of_a_finished_run_does_nothing_more(finished, with_run):
    before = journal(finished.home, finished.run_id)
    said = with_run("train", finished.spec, "--local", "--resume", finished.run_id, "--json")
    assert said.code == 0, said.err
    assert (said.json["run_id"], said.json["step"], said.json["status"]) == (
        finished.run_id,
        4,
        "finished",
    )
    assert said.json["metrics"]["train/loss"] == finished.said.json["metrics"]["train/loss"]
    after = journal(finished.home, finished.run_id)
    assert [r for r in after if r["kind"] == "metrics"] == [
        r for r in before if r["kind"] == "metrics"
    ]


@pytest.mark.parametrize(
    ("override", "said", "fork"),
    [
        ("optimizer.lr=1.0", "optimizer.lr=1.0 (was 0.0001)", ["--from"]),
        ("batch.size=16", "batch.size=16 (was 32)", ["--from"]),
        ("data.hold_out=0.2", "data.hold_out=0.2 (was 0.1)", ["--from"]),
        ("optimizer={kind: muon, lr: 0.01}", "optimizer", ["--from", "--weights-only"]),
        ("model.depth=2", "model.depth=2 (was 1)", []),
        ("seed=1", "seed=1 (was 0)", ["--from"]),
    ],
)
def test_resume_as_another_experiment_is_refused_and_a_fork_that_takes_it_is_named(
    finished, with_run, override, said, fork
):
    changed = ["train", finished.spec, "--local", "--set", override]
    found = with_run(*changed, "--resume", finished.run_id)
    assert found.code == 2 and found.err.count("\n") == 1
    assert "was started as another experiment" in found.err and said in found.err
    assert [word for word in found.err.split() if word in ("--from", "--weights-only")] == fork
    if fork:
        named = ["--from", finished.run_id, *fork[1:]]
        assert with_run(*changed, *named, "--set", "training.steps=6", "--dry-run").code == 0


def test_resume_with_fewer_steps_is_refused(finished, with_run):
    sets = ["--set", "training.steps=3"]
    found = with_run("train", finished.spec, "--local", "--resume", finished.run_id, *sets)
    assert found.code == 2 and "training.steps=3 is behind run" in found.err


def test_a_server_that_does_not_answer_costs_a_warning(ditlab, home, spec):
    """Nothing listens on port 9 of this machine."""
    sets = [
        "--set",
        "tracking.uri=http://127.0.0.1:9",
        "--set",
        "evaluation.every=null",
        "--set",
        "training.steps=2",
    ]
    said = ditlab("train", spec, "--local", "--json", *sets)
    assert said.code == 0, said.err
    assert (said.json["status"], said.json["tracking_uri"]) == ("finished", "http://127.0.0.1:9")
    assert "warning: tracking.uri=http://127.0.0.1:9 does not answer" in said.err
    assert "Traceback" not in said.err
    kept = journal(home, said.json["run_id"])
    assert [r["step"] for r in kept if "train/loss" in r.get("values", ())] == [1, 2]


def test_relative_paths_hold_from_anywhere(ditlab, home, spec, tmp_path, monkeypatch):
    """A run's spec names its checkpoint folder absolutely, as later commands run in other
    directories.
    """
    monkeypatch.chdir(tmp_path)
    said = ditlab(
        "train",
        spec,
        "--local",
        "--json",
        "--set",
        "checkpoint.storage=kept",
        "--set",
        "training.steps=1",
        "--set",
        "evaluation.every=null",
    )
    assert said.code == 0, said.err
    assert Path(said.json["checkpoint"]).is_relative_to(tmp_path / "kept")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exported = ditlab("export", said.json["run_id"], "--out", "weights", "--json")
    assert exported.code == 0, exported.err
    assert str(tmp_path) not in (tmp_path / "elsewhere" / "weights" / "spec.yaml").read_text()
