"""An upload that is held back until a training has begun."""

import threading
import time

from ditlab.tracking.tracker import RunTracker
from support.clusters.faults import wait_until


def test_an_upload_begins_when_it_is_told_to(home, store, new_run):
    with RunTracker(new_run(), None, home, is_held=True) as tracker:
        tracker.start("digits-dit", "digits", "dit")
        tracker.watch_system()
        names = {thread.name for thread in threading.enumerate()}
        assert {"ditlab-uploader", "ditlab-system-metrics"} <= names
        time.sleep(0.1)
        assert tracker.mlflow_run_id is None
        tracker.begin_upload()
        wait_until(lambda: tracker.mlflow_run_id is not None, 60, "an upload")


def test_a_run_that_ends_before_its_first_step_is_sent(home, store, new_run):
    tracker = RunTracker(new_run(), None, home, is_held=True)
    tracker.start("digits-dit", "digits", "dit")
    assert tracker.close(60) == 0
    assert tracker.mlflow_run_id
