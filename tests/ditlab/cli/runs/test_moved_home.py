"""A moved or copied DITLAB_HOME through the commands: refused, relocated, and then a home of its own."""

import hashlib
import shutil
import signal
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from support.command import run_here
from support.served import served

WRITING = (("evaluate", "small"), ("figures", "small", "--kind", "loss"), ("runs", "sync"), ("ui",))


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def copied(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the finished run's home, as DITLAB_HOME."""
    copy = tmp_path / "copy"
    shutil.copytree(finished.home, copy)
    monkeypatch.setenv("DITLAB_HOME", str(copy))
    return copy


def test_whatever_writes_is_refused_with_the_remedy(finished, copied, capfd, monkeypatch, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"name: s\nbase: {finished.spec}\nspace: {{optimizer.lr: {{kind: grid, values: [0.1]}}}}\n"
        "metric: eval/velocity\nmode: min\nsearch: {kind: grid}\n"
    )
    before, original = digests(copied), digests(finished.home)
    for arguments in (*WRITING, ("train", finished.spec, "--local"), ("tune", sweep)):
        said = run_here(capfd, monkeypatch, *arguments)
        assert said.code == 2, arguments
        assert said.err.splitlines()[-1] == (
            f"ditlab: DITLAB_HOME={copied} is a copy of {finished.home}, and its runs would still write there; run "
            "`ditlab runs relocate` once to make it a home of its own."
        )
    assert digests(copied) == before and digests(finished.home) == original


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_relocated_home_is_one_of_its_own(finished, copied, capfd, monkeypatch, tmp_path, is_moved):
    """All that reads and writes acts on the home that is given; the other one's bytes are unchanged."""
    if is_moved:
        copied = copied.rename(tmp_path / "moved")
        monkeypatch.setenv("DITLAB_HOME", str(copied))
    original = digests(finished.home)
    planned = run_here(capfd, monkeypatch, "runs", "relocate", "--dry-run", "--json").json
    said = run_here(capfd, monkeypatch, "runs", "relocate", "--json")
    assert said.code == 0 and said.json["former"] == [str(finished.home)]
    assert (planned["database"], planned["files"]) == (said.json["database"], said.json["files"])
    commands = [("evaluate", "small"), ("figures", "small", "--kind", "loss"), ("sample", "small", "--num", "2")]
    for arguments in (*commands, ("runs", "sync", "small")):
        said = run_here(capfd, monkeypatch, *arguments)
        assert said.code == 0, said.err
    assert "0 left" in said.err
    with closing(sqlite3.connect(copied / "mlflow.db")) as database:
        (uri,) = [row[0] for row in database.execute("SELECT artifact_uri FROM runs")]
    assert (Path(uri) / "figures" / "loss.png").is_file() and Path(uri).is_relative_to(copied)
    assert digests(finished.home) == original


@pytest.mark.slow
def test_the_ui_of_a_relocated_home_shows_its_own_files(finished, copied, capfd, monkeypatch):
    original = digests(finished.home)
    assert run_here(capfd, monkeypatch, "runs", "relocate").code == 0
    (run,) = [path.name for path in (copied / "artifacts" / "ditlab").iterdir() if path.name != "models"]
    with served(copied, end=signal.SIGINT) as server:
        query = f"{server.url}/api/2.0/mlflow/artifacts/list?run_id={run}"
        with urllib.request.urlopen(query, timeout=60) as answer:
            text = answer.read().decode()
    assert str(copied / "artifacts") in text and "spec.yaml" in text
    assert digests(finished.home) == original


def test_a_home_where_it_was_made_is_left(finished, with_run):
    before = digests(finished.home)
    said = with_run("runs", "relocate")
    assert said.code == 0 and said.out == f"{finished.home} is where it was made; there is nothing to relocate\n"
    assert digests(finished.home) == before


def test_what_is_printed_about_a_relocation(finished, copied, capfd, monkeypatch):
    (copied / "train" / finished.run_id / "run.json").write_text("{")
    said = run_here(capfd, monkeypatch, "runs", "relocate")
    first, *facts, backup = said.out.splitlines()
    assert first == f"{copied}: relocated from {finished.home}"
    assert facts == [
        "  MLflow's database: 2 in experiments.artifact_location, 1 in runs.artifact_uri, "
        "1 in logged_models.artifact_location",
        "  files of runs: 1",
    ]
    assert backup.startswith(f"  backup: {copied}/mlflow.db.backup-2") and Path(backup.split(": ")[1]).is_file()
    assert "run.json cannot be read" in said.err
