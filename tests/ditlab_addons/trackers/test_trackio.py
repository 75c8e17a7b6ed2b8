"""Trackio as a tracker: every point of the journal in its database once, whatever happens on the
way.
"""

import json
import sqlite3
import sys

import pytest

from ditlab.home import Home
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.records import create_run, read_record
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import Cursor, CursorFile, num_unsent
from ditlab_addons.housekeeping.sync import sync_runs
from ditlab_addons.trackers.trackio_store import TrackioStore
from support.command import run_inside
from support.journals import read_records

pytest.importorskip("trackio")
URI = "trackio:lab"
TINY = """\
name: tiny
model: {family: dit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}
batch: {size: 16}
training: {steps: 5}
evaluation: {every: 5, samples: 2, limit: 16}
sampling: {steps: 2}
tracking: {system_metrics: false, uri: "trackio:lab"}
"""


@pytest.fixture
def run_home(tmp_path, monkeypatch):
    """A home, for which Trackio is imported again: it fixes its folder at the import."""
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", "/nowhere")
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    return Home(tmp_path)


def answers(home, sql, *values):
    """Rows of Trackio's database that answer a question."""
    with sqlite3.connect(home.root / "trackio" / "lab.db") as database:
        return database.execute(sql, values).fetchall()


def rows(home, run_id):
    """Rows of a run in Trackio's database: step, milliseconds, values."""
    sql = (
        "SELECT step, CAST(ROUND((julianday(timestamp) - 2440587.5) * 86400000) AS "
        "INTEGER), metrics FROM metrics WHERE run_id = ? ORDER BY id"
    )
    return [
        (step, time, json.loads(values))
        for step, time, values in answers(home, sql, run_id)
        if values not in (b"{}", "{}")
    ]


def config(home, run_id):
    ((text,),) = answers(home, "SELECT config FROM configs WHERE run_id = ?", run_id)
    return json.loads(text)


def points(home, run_id):
    """Points of a run in Trackio's database."""
    return [
        row
        for row in rows(home, run_id)
        if not any(isinstance(value, dict) for value in row[2].values())
    ]


def journaled(home, run_id):
    """Points of a run's journal that are for trackers."""
    records = read_records(home.run(run_id).journal)
    return [
        (r["step"], r["time"], r["values"]) for r in records if r["kind"] in ("metrics", "overview")
    ]


def refuse(*_):
    raise sqlite3.OperationalError("database or disk is full")


def tracked(home, name="away", steps=40):
    folder = create_run(home, name, family="dit", spec_hash="", tracking_uri=URI)
    tracker = RunTracker(folder, URI, home)
    tracker.start(name, "lab", "dit", {"seed": "0"})
    for step in range(1, steps + 1):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    return folder, tracker


def test_a_training_arrives_whole(run_home, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    said = run_inside(
        "train", tmp_path / "tiny.yaml", "--local", "--no-figures", "--json", home=tmp_path
    ).ok()
    run_id = said.json["run_id"]
    assert points(run_home, run_id) == journaled(run_home, run_id) and points(run_home, run_id)
    found = config(run_home, run_id)
    facts = {"status": "finished", "training.steps": "5", "ditlab.run": run_id}
    assert facts.items() <= found.items()
    assert "tiny" in found["note"] and found["data.training"]["name"] and found["_Group"] is None
    pictures = [values["samples"] for _, _, values in rows(run_home, run_id) if "samples" in values]
    media = tmp_path / "trackio" / "media"
    assert pictures and all((media / each["file_path"]).is_file() for each in pictures)
    names = [name for (name,) in answers(run_home, "SELECT name FROM artifacts")]
    assert f"{run_id}-spec.yaml" in names and f"{run_id}-export" in names
    assert not (tmp_path / "mlflow.db").exists()


def test_sent_twice_is_there_once(run_home):
    folder, tracker = tracked(run_home)
    tracker.log_text("hello", "environment/words.txt")
    tracker.end("finished")
    assert tracker.close(30.0) == 0
    once = rows(run_home, folder.run_id)
    CursorFile(folder, URI).save(Cursor())
    (result,) = sync_runs([read_record(folder)], run_home, warn=pytest.fail)
    assert result.sent and (result.left, result.fault) == (0, "")
    assert rows(run_home, folder.run_id) == once
    assert config(run_home, folder.run_id)["status"] == "finished"
    assert answers(run_home, "SELECT COUNT(*) FROM artifact_versions") == [(1,)]


@pytest.mark.parametrize("outage", ["locked", "no file", "full"])
def test_an_outage_loses_nothing(run_home, outage, monkeypatch):
    place = run_home.root / "trackio"
    _, tracker = tracked(run_home, "before")
    tracker.close(30.0)
    if outage == "locked":
        blocked = sqlite3.connect(place / "lab.db", isolation_level="EXCLUSIVE")
        blocked.execute("BEGIN EXCLUSIVE")
    if outage == "no file":
        (place / "lab.db").rename(place / "aside")
        (place / "lab.db").mkdir()
    with monkeypatch.context() as patch:
        if outage == "full":
            patch.setattr(TrackioStore, "write", refuse)
        folder, tracker = tracked(run_home)
        left = tracker.close(2.0)
    assert left > 0 and left == num_unsent(folder, URI, run_home)
    if outage == "locked":
        blocked.close()
    if outage == "no file":
        (place / "lab.db").rmdir()
        (place / "aside").rename(place / "lab.db")
    tracker.close(60.0)  # its thread may still wait for the lock
    (result,) = sync_runs([read_record(folder)], run_home, warn=pytest.fail)
    assert (result.left, result.fault) == (0, "")
    assert points(run_home, folder.run_id) == journaled(run_home, folder.run_id)


def test_a_database_that_was_deleted_gets_everything_again_and_a_deleted_run_nothing(run_home):
    folder, tracker = tracked(run_home)
    assert tracker.close(30.0) == 0
    for path in (run_home.root / "trackio").glob("lab.db*"):
        path.unlink()
    again = RunTracker(folder, URI, run_home)
    again.journal.log_metrics(41, {"train/loss": 0.5})
    assert again.close(30.0) == 0
    assert points(run_home, folder.run_id) == journaled(run_home, folder.run_id)
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.delete_run("lab", f"away-{folder.run_id}", folder.run_id)
    warnings = []
    gone = RunTracker(folder, URI, run_home, warn=warnings.append)
    gone.journal.log_metrics(42, {"train/loss": 0.4})
    assert gone.close(30.0) > 0 and "was deleted from Trackio's project lab" in warnings[0]


def test_trials_are_grouped_by_their_sweep(run_home):
    found = []
    for number in range(2):
        folder = create_run(
            run_home, f"trial-{number}", family="dit", spec_hash="", tracking_uri=URI
        )
        tracker = RunTracker(folder, URI, run_home)
        tracker.start(f"../s3://b/[{number}] (two)", "lab", "dit", {}, {PARENT_TAG: "abcd1234"})
        picture = folder.path / "picture.png"
        picture.write_bytes(b"pixels")
        tracker.log_image("samples/of [x]", 1, picture)
        tracker.journal.log_metrics(1, {"train/loss": float("nan")})
        assert tracker.close(30.0) == 0
        found.append(config(run_home, folder.run_id)["_Group"])
        drawn, logged = (values for _, _, values in rows(run_home, folder.run_id))
        place = drawn["samples/of [x]"]["file_path"]
        assert place == f"lab/..-s3:--b-[{number}] (two)-{folder.run_id}/1/samples-of-x-.png"
        assert (run_home.root / "trackio" / "media" / place).read_bytes() == b"pixels"
        assert logged == {"train/loss": "NaN"}
    assert found == ["abcd1234"] * 2


def test_what_is_refused_before_anything_begins(ditlab, spec, monkeypatch):
    ditlab("train", spec, "--local", "--set", "tracking.uri=trackio:a b").refused(
        "names no project of Trackio; give trackio:PROJECT"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ditlab("train", spec, "--local", "--set", "tracking.uri=trackio:lab").refused(
        "needs Trackio, which is not installed; pip install 'ditlab[trackio]'"
    )


def test_steps_that_come_again_and_other_processes_are_kept_in_order(run_home):
    """After a roll-back; W&B drops such points."""
    folder, tracker = tracked(run_home, steps=6)
    other = RunTracker(folder, URI, run_home, node=1)
    for step in (4, 5, 6, 7):
        tracker.journal.log_metrics(step, {"train/loss": 2.0 + step, "key with [brackets]": step})
    other.journal.log_metrics(3, {"system/cpu": 0.5})
    assert tracker.close(30.0) == 0 and other.close(30.0) == 0
    *found, (step, _, values) = points(run_home, folder.run_id)
    assert found == journaled(run_home, folder.run_id)
    assert (step, values) == (3, {"system/cpu": 0.5})
