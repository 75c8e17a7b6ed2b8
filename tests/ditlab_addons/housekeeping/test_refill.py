"""MLflow filled again after a home was moved: sweeps with their trials, pictures, notes, and runs
of a server.
"""

import pytest

from ditlab.home import Home
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.mlflow_runs import find_mlflow_run
from ditlab.tracking.records import create_run, scan_runs
from ditlab.tracking.review import renew_note
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import refill, refill_reason
from support import databases
from support.stored import draw


@pytest.fixture
def home(home):
    """A DITLAB_HOME that holds no run."""
    return Home(home).ensure()


def made(home, name, **facts):
    """A run of the home."""
    return create_run(home, name, family="dit", spec_hash="", **facts)


def logged(home, folder, **start):
    """Log a run with a metric, a picture and a note; returns MLflow's id."""
    tracker = RunTracker(folder, None, home)
    tracker.start("digits", "digits", "dit", **start)
    tracker.journal.log_metrics(1, {"train/loss": 1.0})
    tracker.log_image("samples", 1, draw(folder.media / "a.png"))
    renew_note(tracker)
    tracker.end("finished")
    assert tracker.close(60) == 0
    return str(tracker.mlflow_run_id)


def test_sweeps_and_their_trials(home, mlflow_template, tmp_path):
    databases.seed(home.root, mlflow_template)
    sweep = made(home, "sweep", trials=1)
    trial = made(home, "trial", parent=sweep.run_id)
    away = made(home, "away", tracking_uri="http://127.0.0.1:9")
    before = {sweep.run_id: logged(home, sweep)}
    before[trial.run_id] = logged(home, trial, tags={"ditlab.parent": sweep.run_id})
    moved = Home(home.root.rename(tmp_path / "moved"))
    assert refill_reason(moved) == f"was moved from {home.root}"
    _, results = refill(moved, scan_runs(moved).records, refill_reason(moved), pytest.fail)
    assert {result.run_id: result.left for result in results} == dict.fromkeys(
        (*before, away.run_id), 0
    )
    client = connect(f"sqlite:///{moved.mlflow_database}", moved)
    after = {run_id: find_mlflow_run(client, run_id) for run_id in before}
    assert not {*after.values()} & {*before.values()}
    stored = client.get_run(after[trial.run_id])
    assert stored.data.tags["mlflow.parentRunId"] == after[sweep.run_id]
    assert stored.data.tags["mlflow.note.content"].startswith("**digits**: a dit")
    assert len(client.list_artifacts(stored.info.run_id, "samples")) == 2
    assert refill_reason(moved) == "" and not home.root.exists()


def test_a_home_without_a_database_is_settled(home, tmp_path):
    made(home, "digits-dit")
    moved = Home(home.root.rename(tmp_path / "moved"))
    done, _ = refill(moved, scan_runs(moved).records, refill_reason(moved), pytest.fail)
    assert (done.database, done.artifacts) == ("", "") and refill_reason(moved) == ""
