"""A server whose disk is full: what MLflow's client says of it."""

import shutil

import pytest

from ditlab.tracking.records import read_record
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync_runs
from support.disk import small_disk


@pytest.mark.slow  # a server of its own
def test_a_full_disk_of_a_server(home, tmp_path, mlflow_template, new_run, tracked, own_server):
    with small_disk(tmp_path / "disk", "4m") as disk:
        shutil.copyfile(mlflow_template, disk.path / "server.db")
        own_server.start()
        folder = new_run(tracking_uri=own_server.uri)
        tracker = tracked(folder, own_server.uri)
        tracker.journal.log_metrics(0, {"train/loss": 1.0})
        assert tracker.close(60) == 0 and tracker.said == []
        disk.fill()
        said = tracker.said.append
        with RunTracker(folder, own_server.uri, home, warn=said) as again:
            again.set_tags({f"tag{number}": "v" * 4000 for number in range(400)})
            assert again.close(60) > 0
        assert any("takes nothing" in warning for warning in tracker.said), tracker.said
        (result,) = sync_runs([read_record(folder)], home, warn=said)
        assert "takes nothing of run" in result.fault
