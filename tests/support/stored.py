"""A run as its MLflow store has it, and pictures to log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from ditlab.home import Home
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import CursorFile
from ditlab_addons.housekeeping.sync import sync


class Stored:
    """A run in MLflow."""

    def __init__(self, tracker: RunTracker) -> None:
        assert tracker.mlflow_run_id is not None
        self.id = tracker.mlflow_run_id
        self.client: Any = MlflowClient(tracker.uri)
        self.run = self.client.get_run(self.id)
        self.tags = self.run.data.tags
        self.experiment = self.run.info.experiment_id

    def points(self, key: str) -> list[tuple[int, float]]:
        """Step and value of a metric's points, sorted."""
        return sorted((m.step, m.value) for m in self.client.get_metric_history(self.id, key))

    def files(self, folder: str | None = None) -> list[str]:
        """Paths of the artifacts in a folder."""
        return [file.path for file in self.client.list_artifacts(self.id, folder)]

    def file(self, path: str) -> Path:
        """Download an artifact."""
        return Path(self.client.download_artifacts(self.id, path))


def draw(path: Path, shade: int = 128) -> Path:
    """Write a grey picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(path)
    return path


def send_again(tracker: RunTracker, home: Home) -> None:
    """Send the whole journal once more, as after a crash before the cursor was written."""
    file = CursorFile(tracker.folder, tracker.uri)
    cursor = file.load()
    cursor.offset = 0
    file.save(cursor)
    assert sync(tracker.folder, None, home, warn=pytest.fail) == 0
