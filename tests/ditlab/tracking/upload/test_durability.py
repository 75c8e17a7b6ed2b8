"""Only records on the disk are sent, and damaged files lose and double none."""

import errno
import os
import threading
import time
from collections.abc import Callable

import pytest

from ditlab.home import Home, RunFolder
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync

NewRun = Callable[..., RunFolder]
pytestmark = pytest.mark.usefixtures("store")


def tracked(folder: RunFolder, home: Home, steps: range) -> RunTracker:
    tracker = RunTracker(folder, None, home, warn=lambda message: None)
    tracker.start("digits-dit", "durability", "dit")
    for step in steps:
        tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1)})
    return tracker


def steps_in_mlflow(tracker: RunTracker) -> list[int]:
    import mlflow

    assert tracker.mlflow_run_id is not None
    points = mlflow.MlflowClient(tracker.uri).get_metric_history(
        tracker.mlflow_run_id, "train/loss"
    )
    return sorted(point.step for point in points)


def test_only_what_is_on_the_disk_is_sent(
    home: Home, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ditlab.tracking.upload._POLL_INTERVAL", 0.1)
    folder = new_run()
    tracker = tracked(folder, home, range(100))
    deadline = time.monotonic() + 60
    while tracker.mlflow_run_id is None or len(steps_in_mlflow(tracker)) < 100:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    fsync = os.fsync

    def refuse_the_journal(descriptor: int) -> None:
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


def test_flushing_waits_for_what_was_appended_before_it(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, fsync, sizes = JournalWriter(new_run()), os.fsync, list[int]()

    def slow_fsync(descriptor: int) -> None:
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
    [
        "",
        "{",
        "[]",
        '{"URI": 7}',
        '{"URI": {"offset": "x"}}',
        '{"URI": {"offset": -5}}',
        '{"URI": {"of": 1}}',
        '{"URI": {"offset": 99999999}}',
        '{"URI": {"offset": 3000}\n,"crc":"00000000"}',
    ],
)
def test_a_damaged_cursor_loses_and_doubles_nothing(home: Home, new_run: NewRun, text: str) -> None:
    folder = new_run()
    tracker = tracked(folder, home, range(50))
    assert tracker.close(30) == 0
    folder.journal.with_suffix(".cursor.json").write_text(text.replace("URI", tracker.uri))
    with tracked(folder, home, range(40, 80)) as again:
        pass
    assert sync(folder, None, home, warn=pytest.fail) == 0
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert steps_in_mlflow(again) == list(range(80))


@pytest.mark.parametrize("steps", [range(50, 52), range(50, 300)])
def test_a_new_journal_beside_an_old_cursor_is_sent_whole(
    home: Home, new_run: NewRun, steps: range
) -> None:
    folder = new_run()
    tracker = tracked(folder, home, range(50))
    assert tracker.close(30) == 0
    folder.journal.unlink()
    again = tracked(folder, home, steps)
    assert again.close(30) == 0
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert steps_in_mlflow(again) == list(range(steps.stop))


def test_an_evaluation_of_the_same_step_again_keeps_the_first_value(
    home: Home, new_run: NewRun
) -> None:
    folder = new_run()
    for value in (2.5, 2.5, 2.625):
        with RunTracker(folder, None, home) as tracker:
            tracker.start("digits-dit", "durability", "dit")
            tracker.journal.log_metrics(300, {"train/loss": value})
    assert steps_in_mlflow(tracker) == [300]
    lines = folder.journal.read_text().splitlines()
    assert sum('"metrics"' in line for line in lines) == 1 and any(
        '{"train/loss":2.5}' in line for line in lines
    )
