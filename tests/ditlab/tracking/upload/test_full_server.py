"""A server whose disk is full: what MLflow's client says of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ditlab.home import Home, RunFolder
from ditlab.tracking.records import read_record
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync_runs
from support.disk import small_disk


@pytest.mark.slow  # a server of its own
def test_a_full_disk_of_a_server(
    home: Home,
    tmp_path: Path,
    mlflow_template: Path,
    new_run: Callable[..., RunFolder],
    own_server: Any,
) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        shutil.copyfile(mlflow_template, disk.path / "server.db")
        server = own_server(disk.path)
        server.start()
        folder = new_run(tracking_uri=server.uri)
        warnings: list[str] = []
        with RunTracker(folder, server.uri, home, warn=warnings.append) as tracker:
            tracker.start("digits-dit", "full", "dit")
            tracker.journal.log_metrics(0, {"train/loss": 1.0})
            assert tracker.close(60) == 0 and warnings == []
        disk.fill()
        with RunTracker(folder, server.uri, home, warn=warnings.append) as tracker:
            tracker.set_tags({f"tag{number}": "v" * 4000 for number in range(400)})
            assert tracker.close(60) > 0
        assert any("takes nothing" in warning for warning in warnings), warnings
        (result,) = sync_runs([read_record(folder)], home, warn=warnings.append)
        assert "takes nothing of run" in result.fault
