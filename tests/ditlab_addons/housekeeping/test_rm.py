"""`ditlab runs rm`: what is deleted, what stays and why."""

import json
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from ditlab.home import Home
from ditlab.runs.locks import lock_run
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import append_json_line
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, list_runs, update_record
from support import databases


@pytest.fixture
def runs(home):
    return Home(home)


@pytest.fixture
def new_run(runs):
    """`new_run(name, spec, **record)` makes an ended run with a checkpoint of 3,000 bytes."""

    def make(name, spec=None, **facts):
        folder = create_run(runs, name, family="dit", spec_hash="abc", total_steps=4, **facts)
        folder.spec.write_text(dump_yaml(spec or {"name": name}))
        (folder.checkpoints / "step-00000004").mkdir(parents=True)
        (folder.checkpoints / "step-00000004" / "shard").write_bytes(b"x" * 3000)
        update_record(folder, status="finished", step=4)
        return folder

    return make


@pytest.fixture
def remove(ditlab):
    """`ditlab runs rm ... --yes`"""
    return lambda *arguments: ditlab("runs", "rm", *arguments, "--yes")


def left(runs):
    return {record.run_id for record in list_runs(runs)}


def test_a_run_is_deleted_and_the_others_stay(runs, new_run, ditlab, remove):
    one, other = new_run("one"), new_run("other")
    planned = ditlab("runs", "rm", "one", "--dry-run", "--json").ok()
    assert one.path.is_dir()
    (run,) = planned.json["runs"]
    assert (run["run_id"], run["status"]) == (one.run_id, "finished") and 3000 < run["bytes"] < 5000
    said = remove("one").ok()
    assert left(runs) == {other.run_id}
    assert [path.name for path in runs.runs.iterdir()] == [other.run_id]
    heading, line = map(str.split, said.out.splitlines())
    assert heading == ["run", "name", "status", "size"]
    assert line[:3] == [one.run_id, "one", "finished"]
    assert f"deleted run {one.run_id}, " in said.err
    keeps = f"sqlite:///{runs.mlflow_database} keeps what it has received; --mlflow deletes "
    assert f"{keeps}that as well." in said.err


def test_nothing_is_deleted_unasked(runs, new_run, ditlab):
    """A test's standard input is no terminal."""
    one = new_run("one")
    said = ditlab("runs", "rm", "one")
    assert said.code == 2 and left(runs) == {one.run_id}
    assert said.err.endswith(
        f"ditlab: nobody can be asked whether to delete run {one.run_id}; add --yes, or "
        "--dry-run.\n"
    )


@pytest.mark.parametrize(
    ("answer", "code", "is_left"), [("y\n", 0, False), ("n\n", 130, True), ("", 130, True)]
)
def test_a_person_is_asked(runs, new_run, ditlab, monkeypatch, answer, code, is_left):
    one = new_run("one")
    try:
        read, write = os.openpty() if answer else os.pipe()
    except OSError:
        pytest.skip("this machine has no pseudo-terminals")
    os.write(write, answer.encode()) if answer else os.close(write)
    monkeypatch.setattr("sys.stdin", os.fdopen(read))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    said = ditlab("runs", "rm", "one")
    assert said.code == code and f"Delete run {one.run_id}? [y/N]" in said.err
    assert (left(runs) == {one.run_id}) is is_left
    assert ("nothing was deleted.\n" in said.err) is (answer == "n\n")


def test_a_run_that_trains_stays(runs, new_run, remove):
    one, other = new_run("one"), new_run("other")
    with lock_run(one):
        remove("other", "one").refused(
            f": run {one.run_id} is being trained by another process; stop that one first.\n"
        )
    assert left(runs) == {one.run_id, other.run_id}


def test_a_trial_stays_with_its_sweep_and_goes_with_it(runs, new_run, remove):
    sweep = new_run("sweep", trials=2)
    trials = [new_run(f"sweep-{each}", parent=sweep.run_id, trial=each) for each in (0, 1)]
    update_record(trials[1], parent="")  # known by the ledger alone
    line = {"number": 1, "run_id": trials[1].run_id, "values": {}}
    append_json_line(sweep.path / "trials.jsonl", line)
    stranger = new_run("stranger")
    for number, trial in enumerate(trials):
        remove(trial.run_id).refused(
            f"ditlab: run {trial.run_id} is trial {number} of sweep {sweep.run_id} (sweep), "
            "whose ranking, report and best.yaml need it; delete the sweep, and its trials go "
            "with it.\n"
        )
    said = remove("sweep").ok()
    assert left(runs) == {stranger.run_id}
    assert "deleted 3 runs" in said.err


def test_a_trial_whose_sweep_is_gone_or_unreadable(runs, new_run, remove):
    sweep, trial = new_run("sweep", trials=1), new_run("trial", trial=0)
    update_record(trial, parent=sweep.run_id)
    sweep.record.write_text("{")
    assert f"of sweep {sweep.run_id}, whose" in remove(trial.run_id).err
    remove(sweep.run_id).ok()  # unreadable: by its id alone
    remove(trial.run_id).ok()
    assert left(runs) == set()


def test_a_run_that_another_names_stays(runs, new_run, remove):
    """Weights to start from, an encoder, a store made by it: whatever a spec or a store's record
    names.
    """
    teacher = new_run("teacher")
    path = f"{teacher.path}/media/export"
    uses = [
        new_run("by-path", {"name": "x", "encoders": {"text": path}}),
        new_run("by-id", {"name": "x", "model": {"teacher": teacher.run_id}}),
    ]
    innocent = new_run(teacher.run_id, {"name": teacher.run_id, "seed": 0})  # a name is no use
    for use in uses:
        said = remove(teacher.run_id)
        said.refused("which names it or a file in its folder; delete that first.")
        assert any(each.run_id in said.err for each in uses)
        remove(use.run_id).ok()
    store = runs.stores / "features"
    store.mkdir(parents=True)
    (store / "store.json").write_text(json.dumps({"origin": {"run": teacher.run_id}}))
    said = remove(teacher.run_id)
    assert f"run {teacher.run_id} is needed by store features" in said.err
    # digits of a hash
    (store / "store.json").write_text(json.dumps({"fingerprint": f"ab{teacher.run_id}cd"}))
    remove(teacher.run_id).ok()
    assert left(runs) == {innocent.run_id}


def test_links_are_neither_followed_nor_deleted(runs, new_run, tmp_path, remove):
    one = new_run("one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (one.path / "link").symlink_to(elsewhere)
    os.mkfifo(one.path / "pipe")
    remove("one").ok()
    assert (elsewhere / "precious").read_text() == "x"
    other = new_run("other")
    shutil.move(other.path, tmp_path / "moved")
    other.path.symlink_to(tmp_path / "moved")
    remove(other.run_id).refused(
        f"ditlab: run {other.run_id} is a link to {tmp_path}/moved; delete the link itself.\n"
    )
    assert (tmp_path / "moved" / "run.json").is_file()


def test_what_a_killed_deletion_left_goes_with_the_next(runs, new_run, ditlab, remove):
    one = new_run("one")
    new_run("other")
    (runs.runs / ".removed" / "deadbeef-0000").mkdir(parents=True)
    assert ditlab("runs").out.count("\n") == 3  # the heading and two runs
    remove(one.run_id).ok()
    assert not (runs.runs / ".removed").exists()


def test_records_and_checkpoints_elsewhere_are_said(runs, new_run, tmp_path, remove):
    one = new_run("one", {"name": "one", "checkpoint": {"storage": str(tmp_path / "far")}})
    journal = JournalWriter(one)
    journal.append("tags", values={"a": "b"})
    journal.close()
    said = remove("one")
    assert f"run {one.run_id}: records that MLflow lacks are lost with it: 1\n" in said.err
    assert f"run {one.run_id}: its checkpoints at {tmp_path}/far/{one.run_id} stay.\n" in said.err


def test_mlflows_run_is_deleted_on_demand(runs, new_run, ditlab, mlflow_template, remove):
    databases.seed(runs.root, mlflow_template)
    one, other = new_run("one"), new_run("other")
    for folder in (one, other):
        journal = JournalWriter(folder)
        journal.append("start", run_id=folder.run_id, name="x", experiment="ditlab", family="dit")
        journal.close()
    ditlab("runs", "sync").ok()
    ditlab("runs", "rm", "one", "--yes", "--mlflow").ok()
    remove("other").ok()
    query = (
        "SELECT value, lifecycle_stage FROM runs JOIN tags USING (run_uuid) WHERE key = "
        "'ditlab.run'"
    )
    with closing(sqlite3.connect(runs.mlflow_database)) as database:
        stages = dict(database.execute(query).fetchall())
    assert stages == {one.run_id: "deleted", other.run_id: "active"}


def test_a_server_that_does_not_answer_keeps_the_run(runs, new_run, ditlab):
    one = new_run("one", tracking_uri="http://127.0.0.1:9")
    said = ditlab("runs", "rm", "one", "--yes", "--mlflow")
    assert said.code == 2 and left(runs) == {one.run_id}
    assert f"start that server, or delete run {one.run_id} without --mlflow." in said.err
