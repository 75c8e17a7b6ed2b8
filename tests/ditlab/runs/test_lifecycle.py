"""The record and the journal of a run, however it ends."""

import copy
from unittest.mock import Mock

import pytest

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.runs.launch import Launch
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.spec.files import load_experiment
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import create_run, read_record, update_record
from ditlab.training.reporting import RunOutcome
from support.damage import refused
from support.sweeps import log
from support.trainings.workers import tiny


@pytest.fixture
def home(home):
    """A DITLAB_HOME that holds no run."""
    return Home(home)


@pytest.fixture
def folder(home):
    """Folder of a run that has logged a step."""
    folder = create_run(home, "tiny", family="dit", spec_hash="")
    log(folder, {1: {"train/loss": 1.0}})
    return folder


@pytest.fixture(autouse=True)
def no_upload(monkeypatch):
    """Upload nothing: MLflow has tests of its own."""
    monkeypatch.setattr("ditlab.tracking.upload.BackgroundUploader._run", lambda self: None)
    monkeypatch.setattr("ditlab.tracking.upload.BackgroundUploader.close", lambda self, *_: None)


def lifecycle(folder, home, experiment=None, resumed=False):
    return RunLifecycle(Launch(experiment or tiny(), home, folder.run_id, resumed))


def ending(folder):
    """(status, message, step) of the record; the status that ends the journal; its tags."""
    record, facts = read_record(folder), JournalFacts.of(read_content(folder.journal))
    last = None if facts.status == "running" else facts.status
    return (record.status, record.message, record.step), last, facts.tags


def test_a_started_run_is_running_and_a_resumed_one_is_what_its_spec_says_now(folder, home):
    folder.spec.write_text("name: old\n")
    longer = tiny(training__steps=9)
    for is_resumed in (False, True):
        update_record(folder, status="failed", message="it failed")
        lifecycle(folder, home, longer, is_resumed).start(6)
        assert ending(folder)[0] == ("running", "", 0) and read_record(folder).total_steps == 6
        assert (folder.spec.read_text() == "name: old\n") is not is_resumed
    assert load_experiment(folder.spec) == longer


def test_a_home_that_cannot_be_written_is_a_user_error(folder, home, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("ditlab.runs.lifecycle.update_record", full)
    with refused(rf"DITLAB_HOME={home.root} cannot be written \(No space left on device\)"):
        lifecycle(folder, home).start(6)


@pytest.mark.parametrize("status", ["finished", "stopped", "interrupted"])
def test_an_end_that_the_workers_reported(folder, home, status):
    one = lifecycle(folder, home)
    one.start(6)
    with one.recording_failure():
        pass
    one.end(RunOutcome(status, 4, {"train/loss": 0.5}, None))
    assert ending(folder) == ((status, "", 4), None, {})  # the tracked run was closed by its worker


def test_an_interruption_that_the_workers_could_not_report(folder, home):
    one = lifecycle(folder, home)
    one.end(RunOutcome("interrupted", 4, {}, None))
    tags = {"ditlab.error": "interrupted", "ditlab.status": "interrupted"}
    assert ending(folder) == (("interrupted", "", 4), "interrupted", tags)


FAILURES = [
    (UserError("lr=0 is no rate.\nSet it."), "lr=0 is no rate.", "user_error"),
    (RunFailed("loss is NaN", kind="diverged"), "loss is NaN", "diverged"),
    (RunFailed("it failed"), "it failed", "crash"),
    (OSError("no space left"), "OSError: no space left", "crash"),
    (AssertionError(), "AssertionError", "crash"),
    (KeyboardInterrupt(), "KeyboardInterrupt", None),
    (SystemExit(3), "SystemExit: 3", "crash"),
]


@pytest.mark.parametrize(
    "raised, message, kind", FAILURES, ids=[str(one[0])[:9] for one in FAILURES]
)
def test_an_exception_is_recorded(folder, home, raised, message, kind):
    error = copy.copy(raised)  # the record of a failure changes its message
    status = "failed" if kind else "interrupted"
    one = lifecycle(folder, home)
    one.start(6)
    with pytest.raises(type(error)) as caught, one.recording_failure():
        raise error
    found, last, tags = ending(folder)
    assert found == (status, message, 0) and last == status
    assert tags.get("ditlab.failure") == kind and tags["ditlab.error"].startswith(message)
    if isinstance(error, UserError | RunFailed):
        assert str(caught.value) == f"run {folder.run_id} (tiny): {raised}"


def test_a_run_that_logged_nothing_is_not_tracked(home):
    folder = create_run(home, "tiny", family="dit", spec_hash="")
    one = lifecycle(folder, home)
    with pytest.raises(RunFailed), one.recording_failure():
        raise RunFailed("its data are gone")
    one.record_attempt_failure({"ditlab.failure.1": "lost worker"})
    assert read_record(folder).status == "failed" and not folder.journal.exists()


def test_a_failed_attempt_is_recorded_in_the_journal(folder, home):
    lifecycle(folder, home).record_attempt_failure({"ditlab.failure.1": "lost worker"})
    assert ending(folder)[2] == {"ditlab.failure.1": "lost worker"}


def test_a_record_that_is_gone_hides_no_failure(folder, home, capsys):
    one = lifecycle(folder, home)
    folder.record.unlink()
    with refused("it failed", RunFailed), one.recording_failure():
        raise RunFailed("it failed")
    assert f"warning: {folder.record} cannot be written" in capsys.readouterr().err
