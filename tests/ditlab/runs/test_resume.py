"""Resuming: what may change, what later commands see of it, and who may train a run."""

import threading
from contextlib import ExitStack

import pytest
from ditlab.runs.start import start_run

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.locks import lock_run, writing
from ditlab.spec.reading.yaml_text import parse_yaml
from ditlab.tracking.records import list_runs, read_record
from support.workers import tiny


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def go(experiment, resume=None):
    return start_run(experiment, resume, local=True, remote=False, dry_run=False).go(local=True)


def test_a_longer_run_is_what_its_spec_says_from_then_on(home):
    first = go(tiny(training__steps=2))
    go(tiny(training__steps=3, sampling={"steps": 7}), first.run_id)
    folder = home.run(first.run_id)
    spec = parse_yaml(folder.spec.read_text(), "spec.yaml")
    assert (spec["training"]["steps"], spec["sampling"]["steps"]) == (3, 7)
    assert read_record(folder).total_steps == 3


def test_a_run_does_not_leave_its_checkpoints_behind(home, tmp_path):
    first = go(tiny(training__steps=2))
    with pytest.raises(UserError, match=rf"is not where run {first.run_id} keeps its .*set checkpoint.storage=null"):
        go(tiny(training__steps=3, checkpoint={"storage": str(tmp_path / "elsewhere")}), first.run_id)


def test_two_processes_do_not_train_one_run(home, monkeypatch):
    monkeypatch.setattr("ditlab.runs.start.LEASE", 1.0)  # in a session that other tests may have left connected
    first = go(tiny(training__steps=2))
    folder = home.run(first.run_id)
    before = read_record(folder)
    with lock_run(folder), pytest.raises(UserError, match=f"run {first.run_id} is being trained by another process"):
        go(tiny(training__steps=3), first.run_id)
    assert read_record(folder) == before
    assert go(tiny(training__steps=3), first.run_id).outcome.step == 3


def test_a_bug_in_one_process_is_a_failure_not_an_interruption(home, monkeypatch):
    def broken(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("ditlab.training.worker.worker_share", broken)
    with pytest.raises(OSError, match="no space left"):
        go(tiny(name="broken", training__steps=2))
    (record,) = list_runs(home)
    assert (record.status, record.message) == ("failed", "OSError: no space left on device")


def test_a_failed_run_says_which_step_it_can_go_on_from(home, monkeypatch):
    def evaluate(evaluation, state, batch_size):
        if state.step:
            raise RunFailed(f"stopped by a test after step {state.step}")
        return {}

    monkeypatch.setattr("ditlab.training.evaluation.RunEvaluation.evaluate", evaluate)
    with pytest.raises(RunFailed):
        go(tiny(evaluation={"every": 4}))
    (record,) = list_runs(home)
    assert (record.status, record.step) == ("failed", 3)


def test_who_waits_for_a_journal_says_so_and_goes_on_when_it_is_free(tmp_path):
    """As workers of an earlier launch have it, which live on for a while."""
    folder, said = RunFolder(tmp_path), []
    first = ExitStack()
    first.enter_context(writing(folder))
    refusal = r"another worker still writes .*journal.jsonl after 0 s"
    with pytest.raises(RunFailed, match=refusal), writing(folder, patience=0):
        pass
    with writing(folder, node=1, patience=0):  # another node has one of its own
        pass
    leave = threading.Timer(6.0, first.close)
    leave.start()
    with writing(folder, patience=60, warn=said.append):
        leave.join()
    assert len(said) == 1 and "waiting up to 60 s for its end" in said[0]
