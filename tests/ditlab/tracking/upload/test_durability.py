"""Only records on the disk are sent, and damaged files lose and double none."""

import errno
import os
import threading
import time

import pytest

from ditlab.tracking.journal_writer import JournalWriter
from ditlab_addons.housekeeping.sync import sync
from support.clusters.faults import wait_until
from support.stored import Stored

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def trained(tracked):
    """`trained(folder, steps)`: a run that has logged steps."""

    def begin(folder, steps):
        tracker = tracked(folder)
        for step in steps:
            tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1)})
        return tracker

    return begin


def steps_in_mlflow(tracker):
    return [step for step, _ in Stored(tracker).points("train/loss")]


def test_only_what_is_on_the_disk_is_sent(new_run, trained, monkeypatch):
    monkeypatch.setattr("ditlab.tracking.upload._POLL_INTERVAL", 0.1)
    folder = new_run()
    tracker = trained(folder, range(100))
    wait_until(lambda: tracker.mlflow_run_id and len(steps_in_mlflow(tracker)) == 100, 60, "steps")
    fsync = os.fsync

    def refuse_the_journal(descriptor):
        if os.path.samestat(os.fstat(descriptor), folder.journal.stat()):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_the_journal)
    for step in range(100, 200):
        tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1)})
    tracker.journal.sync()
    time.sleep(1)  # several attempts to send
    assert steps_in_mlflow(tracker) == list(range(100))
    monkeypatch.setattr(os, "fsync", fsync)
    assert tracker.close(30) == 0
    assert steps_in_mlflow(tracker) == list(range(200))


def test_flushing_waits_for_what_was_appended_before_it(new_run, monkeypatch):
    journal, fsync, sizes = JournalWriter(new_run()), os.fsync, list[int]()

    def slow_fsync(descriptor):
        size = os.fstat(descriptor).st_size  # what comes later need not be on the disk afterwards
        time.sleep(0.3)
        fsync(descriptor)
        sizes.append(size)

    monkeypatch.setattr(os, "fsync", slow_fsync)
    journal.log_metrics(1, {"train/loss": 1.0})
    other = threading.Thread(target=journal.sync)
    other.start()
    time.sleep(0.1)  # the other is at it already, without the next record
    journal.log_metrics(2, {"train/loss": 1.0})
    assert journal.sync() == journal.path.stat().st_size == sizes[-1]
    other.join()
    journal.close()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"URI": {"offset": -5}}', '{"URI": {"of": 1}}', '{"URI": {"offset": 99999999}}'],
)
def test_a_damaged_cursor_loses_and_doubles_nothing(home, new_run, trained, text):
    folder = new_run()
    tracker = trained(folder, range(50))
    assert tracker.close(30) == 0
    folder.journal.with_suffix(".cursor.json").write_text(text.replace("URI", tracker.uri))
    with trained(folder, range(40, 80)) as again:
        pass
    assert sync(folder, None, home, warn=pytest.fail) == 0
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert steps_in_mlflow(again) == list(range(80))


@pytest.mark.parametrize("steps", [range(50, 52), range(50, 300)])
def test_a_new_journal_beside_an_old_cursor_is_sent_whole(new_run, trained, steps):
    folder = new_run()
    tracker = trained(folder, range(50))
    assert tracker.close(30) == 0
    folder.journal.unlink()
    again = trained(folder, steps)
    assert again.close(30) == 0
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert steps_in_mlflow(again) == list(range(steps.stop))
