"""A file system without locks: work goes on, with one warning."""

import errno
import fcntl
import logging
import os

import pytest

from ditlab.home import Home
from ditlab.runs.locks import is_locked, lock_journal, lock_run
from ditlab.storage import files
from ditlab.storage.files import lock_fault, take_lock
from ditlab.tracking.mlflow_connection import connect, outage_reason
from ditlab.tracking.records import create_run, read_record, update_record
from ditlab.tracking.upload import CursorFile


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def without_locks(request, monkeypatch):
    """Locks of both kinds fail with one error; returns its text."""

    def refuse(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr(files, "_devices_without_locks", set())
    return os.strerror(request.param)


@pytest.fixture
def folder(home):
    return create_run(Home.from_environment(), "small", family="dit", spec_hash="")


def test_all_that_locks_goes_on_with_one_warning(without_locks, folder, caplog):
    caplog.set_level(logging.WARNING, "ditlab")
    with lock_run(folder), lock_journal(folder):
        update_record(folder, step=3)
    cursors = CursorFile(folder, "sqlite:///x.db")
    assert cursors.acquire() and read_record(folder).step == 3 and not is_locked(folder)
    cursors.release()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"has no locks ({without_locks})" in warning and "run.lock" in warning


def test_waiting_for_a_lock_that_is_not_there(without_locks, tmp_path):
    with (tmp_path / "lock").open("ab") as file:
        assert take_lock(file, wait=True) and take_lock(file)


def test_a_database_there_is_refused_at_once(without_locks, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(OSError) as refused:
        connect(uri, Home(tmp_path))
    assert outage_reason(refused.value) == (
        f"its file system has no locks ({without_locks}), which SQLite needs; name a server, or a "
        "database on another file system, as tracking.uri"
    )
    assert not (tmp_path / "mlflow.db").exists()


def test_locks_that_are_there(tmp_path, caplog):
    file = tmp_path / "lock"
    with file.open("ab") as one, file.open("ab") as two:
        assert take_lock(one) and not take_lock(two)
    assert lock_fault(file) == "" and lock_fault(tmp_path / "none" / "lock") == ""
    assert not caplog.records
