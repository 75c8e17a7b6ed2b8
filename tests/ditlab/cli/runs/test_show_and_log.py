"""`ditlab runs show` and `ditlab runs log`: one run, and its events."""

import json
import os
import shlex
import threading

import pytest

from ditlab.home import Home
from ditlab.runs.events import EventReader, add_event
from ditlab.runs.locks import lock_run
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from support.clusters.faults import wait_until
from support.damaged.home import copied_home

SPEC = {"name": "small", "seed": 3, "data": {"kind": "digits"}, "optimizer": {"lr": 0.01}}


@pytest.fixture
def run(home):
    """A run that failed once, went on, was evaluated and finished; MLflow has none of it."""
    folder = create_run(Home(home), "small", family="dit", spec_hash="abc", total_steps=600)
    folder.spec.write_text(dump_yaml(SPEC))
    journal = JournalWriter(folder)
    begin = {"run_id": folder.run_id, "name": "small", "experiment": "digits", "family": "dit"}
    journal.append("start", **begin)
    origin = {"name": "digits", "fingerprint": "f", "source": "digits", "context": "training"}
    journal.append("dataset", **origin, counts={"train": 1617, "held_out": 180})
    for step in range(1, 301):
        journal.log_metrics(step, {"train/loss": 1 / step, "system/cpu": 50.0})
    failure = {"ditlab.failure": "lost_worker", "ditlab.error": "worker 1 \x1b[2J[red]\nand more"}
    journal.append("tags", values=failure)
    journal.append("start", **begin)
    changes = {
        "training.steps": ("300", "600"),
        "spec_hash": ("a", "b"),
        "resources.workers": ("2", ""),
    }
    journal.append("resume", step=300, changes=changes, rates="learning rate 0 at step 300")
    journal.log_metrics(400, {"eval/a": 0.5, "eval/b": 0.25, "eval/c": float("nan"), "eval/d": 1.0})
    for name in ("one.png", "two.png"):
        journal.append("artifact", path=f"media/{name}", artifact_path="figures")
    journal.append("end", status="finished")
    journal.close()
    checkpoint = folder.checkpoints / "step-00000400"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (checkpoint / "shard").write_bytes(b"x" * (3 << 20))
    (folder.checkpoints / "step-00000500").mkdir()  # not committed
    update_record(folder, status="finished", step=400)
    return folder


def test_a_run_is_shown(run, ditlab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = ditlab("runs", "show", "small").ok()
    assert said.err.startswith("next: ") and said.err.endswith(f"runs sync {run.run_id}\n")
    lines = [line.rstrip() for line in said.out.splitlines()]
    assert lines[0] == f"run {run.run_id}: small" and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for expected in (
        "kind         dit",
        "status       finished, step 400 of 600",
        "spec         seed: 3\n             data.kind: digits\n             optimizer.lr: 0.01\n",
        "checkpoints  400",
        "size         3.0 MiB (checkpoints 3.0 MiB, journal ",
        "queued       records that wait for MLflow: 309",
        "metric      last value  step\neval/a             0.5   400",
        "train/loss   0.0033333   300",
        "and 1 more metric, which --json shows",
    ):
        assert expected in text, expected


def test_all_of_it_is_in_the_json(run, ditlab, home):
    command = ("runs", "show", run.run_id, "--json")
    shown = ditlab(*command).json
    assert shown["metrics"]["system/cpu"] == {"step": 300, "value": 50.0}
    assert shown["metrics"]["eval/c"] == {"step": 400, "value": None}
    assert shown["checkpoints"] == {"place": str(run.checkpoints), "steps": [400]}
    assert (shown["unsent"], shown["is_locked"], shown["status"]) == (309, False, "finished")
    assert shown["bytes"]["total"] > shown["bytes"]["checkpoints"] > 3 << 20
    database = home / "mlflow.db"
    assert shown["tracking_uri"] == f"sqlite:///{database}" and not database.exists()
    with lock_run(run):
        assert ditlab(*command).json["is_locked"]


def test_a_sweep_is_shown_with_its_trials(run, ditlab, home):
    sweep = create_run(Home(home), "sweep", family="dit", spec_hash="", trials=2)
    written = {"base": SPEC, "search": {"kind": "grid"}, "metric": "eval/a"}
    (sweep.path / "sweep.yaml").write_text(dump_yaml(written))
    update_record(run, parent=sweep.run_id, trial=0)
    said = ditlab("runs", "show", "sweep")
    out = said.out + said.err
    for expected in (
        "sweep of 2 trials over dit",
        "1 finished",
        "search.kind: grid",
        f"tune --resume {sweep.run_id}",
        "running; a process trains it now",
    ):
        assert expected in out, expected
    assert "checkpoints" not in out
    assert f"0 of sweep {sweep.run_id}" in ditlab("runs", "show", run.run_id).out


def test_files_that_cannot_be_read_are_said(run, ditlab):
    """None hangs and none ends in a traceback."""
    run.spec.unlink()
    os.mkfifo(run.spec)
    with run.journal.open("a") as file:
        file.write("{torn\n")
    said = ditlab("runs", "show", "small").ok()
    assert "spec.yaml cannot be read (a named pipe, no plain file)." in said.err
    assert "1 damaged line" in said.err
    run.journal.unlink()
    run.journal.mkdir()
    said = ditlab("runs", "show", "small").ok()
    assert "journal.jsonl cannot be read (" in said.err
    ditlab("runs", "log", "small").refused("journal.jsonl cannot be read (", "; restore it")


@pytest.mark.parametrize("command", [("show",), ("log",), ("rm", "--yes")])
def test_runs_that_are_links_or_of_a_later_version(run, ditlab, home, tmp_path, command):
    later = json.loads(run.record.read_text())
    run.record.write_text(json.dumps({**later, "format": 99}))
    (home / "train" / "cafe0000").symlink_to(run.path)
    if command[0] != "rm":  # an unreadable run may be deleted
        ditlab("runs", *command, run.run_id).refused("and this version of DiTLab reads 2")
    ditlab("runs", *command, "cafe0000").refused("a link")
    assert run.record.is_file()


def test_events_stand_in_their_order(run, ditlab):
    """And reach a terminal without control characters."""
    said = ditlab("runs", "log", "small")
    times, texts = zip(*(line.split("  ", 1) for line in said.out.splitlines()), strict=True)
    assert list(times) == sorted(times)
    assert said.err.startswith("next: ") and said.err.endswith(f"ditlab runs show {run.run_id}\n")
    checkpoint = "checkpoint of step 400 (3.0 MiB)"  # its time is that of its files
    assert checkpoint in texts
    assert [text for text in texts if text != checkpoint] == [
        "started: small, MLflow experiment digits",
        "data: digits (1,617 train, 180 held out)",
        "failed: lost_worker: worker 1 \\x1b[2J[red]",
        "started again (1): small, MLflow experiment digits",
        "resumed after step 300 with training.steps: 300 -> 600; resources.workers: 2 -> none; learning rate 0 at step 300",
        "evaluated at step 400: eval/a 0.5, eval/b 0.25, eval/c nan and 1 more",
        "logged figures (2 files)",
        "ended: finished",
    ]


def test_the_last_events_and_json(run, ditlab):
    whole = ditlab("runs", "log", "small", "--json").json["events"]
    assert ditlab("runs", "log", "small", "--tail", "2", "--json").json["events"] == whole[-2:]
    kinds = {"start", "data", "failure", "evaluation", "files", "end", "checkpoint"}
    assert {event["kind"] for event in whole} == kinds
    assert all(event["time"].endswith("+00:00") for event in whole)


def test_new_events_are_followed_to_the_end_of_the_run(run):
    reader = EventReader(run)
    assert len(reader.read_all()) == 9
    found = []

    def follow():
        found.extend(each.text for each in reader.follow(0.02))

    with lock_run(run):
        follower = threading.Thread(target=follow)
        follower.start()
        journal = JournalWriter(run)
        journal.log_metrics(500, {"eval/a": 0.125, "train/loss": 0.1})
        with run.journal.open("ab") as file:
            file.write(b'{"kind":"tags"')  # in writing: it is read once it is whole
        wait_until(lambda: found, 20, "an event")
        assert found == ["evaluated at step 500: eval/a 0.125"]
        with run.journal.open("ab") as file:
            file.write(b"\n")
        journal.append("end", status="interrupted")
        journal.close()
    follower.join(20)
    assert found[1:] == ["ended: interrupted"] and reader.num_damaged == 1


def test_events_of_observers_stand_among_the_others_and_a_damaged_line_costs_itself_alone(
    run, ditlab
):
    add_event(run, "weather", "rain")
    damaged = '{"time": "soon", "kind": "a", "text": "b"}\n{"time": 1}\n[1]\n{"time": 2, "kin\n'
    with run.added_events.open("a") as file:
        file.write(damaged)
    add_event(run, "weather", "sun")
    events = ditlab("runs", "log", "small", "--json").json["events"]
    assert [event["text"] for event in events if event["kind"] == "weather"] == ["rain", "sun"]
    assert len(events) == 11


def test_a_run_without_events(home, ditlab):
    folder = create_run(Home(home), "new", family="dit", spec_hash="abc", total_steps=600)
    said = ditlab("runs", "log", "new")
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith(f"run {folder.run_id} has no events yet.\n")


def test_an_interrupted_run_goes_on_by_the_command_that_is_shown(finished, ditlab, home):
    copied_home(finished.home, home)
    update_record(Home(home).run(finished.run_id), status="interrupted")
    shown = ditlab("runs", "show", finished.run_id).err.splitlines()
    command = shlex.split(next(line for line in shown if line.startswith("next: ")))
    said = ditlab(*command[command.index("train") :], "--local", "--json").ok()
    assert said.json["run_id"] == finished.run_id and said.json["status"] == "finished"


def test_a_run_without_its_process_is_lost_and_one_of_another_host_is_not_called_so(
    run, ditlab, home
):
    """Killed -9, or its host was switched off: `running` for ever would be said of nobody's
    work.
    """
    journal = JournalWriter(run)
    journal.log_metrics(450, {"train/loss": 0.25})
    journal.close()
    record = update_record(run, status="running")
    said = ditlab("runs")
    assert " running " in said.out  # this very process has begun it
    update_record(run, process={**record.process, "pid": "999999999"})
    said = ditlab("runs", "--json")
    assert "lost at step 450" in said.err and "checkpoint 400" in said.err, said.err
    [row] = said.json["runs"]
    assert (row["status"], row["state"]) == ("lost", "at step 450, checkpoint 400")
    said = ditlab("runs", "show", run.run_id)
    assert "lost at step 450, checkpoint 400" in said.out and f"--resume {run.run_id}" in said.err
    with lock_run(run):  # on a file system that several hosts share
        assert " running " in ditlab("runs").out
    update_record(run, process={**record.process, "host": "node-7"})
    assert " running " in ditlab("runs").out
    shown = " ".join(ditlab("runs", "show", run.run_id).out.split())
    assert "of host node-7, which cannot be seen from here" in shown
