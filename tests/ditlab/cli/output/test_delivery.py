"""Metrics, figures and pages that are added to a run after its training: sent before the command
ends, or queued.
"""

import shutil

import mlflow
import pytest

from ditlab.home import Home
from ditlab.tracking.records import read_record
from ditlab.tracking.upload import JournalTransfer
from ditlab_addons.housekeeping.sync import sync_runs
from support import databases
from support.command import run_here


@pytest.fixture
def mine(finished, mlflow_template, tmp_path, monkeypatch, capfd, blank_pictures):
    """`mine(*arguments)` in a home with the finished run as its training left it: other tests add
    to that run.
    """
    home = Home(tmp_path / "mine").ensure()
    databases.seed(home.root, mlflow_template)
    home.runs.mkdir()
    added = shutil.ignore_patterns("*.cursor.json*", "figures", "assessment")
    folder = home.run(finished.run_id)
    shutil.copytree(Home(finished.home).run(finished.run_id).path, folder.path, ignore=added)
    shutil.copytree(Home(finished.home).stores, home.stores)
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if line.startswith(b'{"kind":"end"'))
    folder.journal.write_bytes(b"".join(lines[: end + 1]))
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    (synced,) = sync_runs([read_record(folder)], home, warn=pytest.fail)
    assert synced.sent == end + 1 and synced.left == 0
    return lambda *arguments: run_here(capfd, monkeypatch, *arguments)


def in_mlflow(home, run_id):
    """MLflow's run of a run's id."""
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (found,) = client.search_runs(experiments, f"tags.`ditlab.run` = '{run_id}'")
    return client, found


@pytest.fixture
def no_answer(monkeypatch):
    """MLflow takes nothing, whatever its address."""

    def refuse(*_, **__):
        raise ConnectionError("Connection refused")

    monkeypatch.setattr(JournalTransfer, "send_pending", refuse)


def test_what_a_server_takes_is_there_when_the_command_ends(finished, mine, tmp_path):
    run_id = finished.run_id
    said = mine("evaluate", run_id)
    assert f"metrics sent to MLflow, run {run_id}\n" in said.err, said.err
    client, found = in_mlflow(tmp_path / "mine", run_id)
    assert any(name.startswith("held_out/") for name in found.data.metrics)
    said = mine("figures", run_id, "--kind", "loss", "--kind", "schedule")
    assert f"figures sent to MLflow, run {run_id}\n" in said.err, said.err
    assert {file.path for file in client.list_artifacts(found.info.run_id, "figures")} == {
        "figures/loss.png",
        "figures/schedule.png",
    }


def test_what_no_server_takes_is_queued(finished, mine, no_answer):
    run_id = finished.run_id
    said = mine("evaluate", run_id).ok()
    # its metrics, the tags of what they were measured with, the model's figures, the note
    assert (
        "metrics queued for MLflow, which does not take them now (4 records to send)" in said.err
    ), said.err
    said = mine("figures", run_id, "--kind", "loss")
    assert (
        "figures queued for MLflow, which does not take them now (5 records to send); " in said.err
    ), said.err
    assert f"`ditlab runs sync {run_id}` sends them" in said.err and "logged" not in said.err


def test_nothing_is_said_of_an_evaluation_that_is_not_added(finished, mine, no_answer):
    said = mine("evaluate", finished.run_id, "--rows", "4")
    assert "MLflow" not in said.err, said.err
