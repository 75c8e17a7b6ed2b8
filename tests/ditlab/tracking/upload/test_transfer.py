"""Transfer of a journal into a real MLflow store: everything arrives, and arrives once."""

import json
import math
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ditlab.home import Home, RunFolder
from ditlab.tracking.history import metric_history
from ditlab.tracking.names import PARAM_LENGTH, TAG_LENGTH
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import CursorFile
from ditlab_addons.housekeeping.sync import sync
from support.forked import Forked
from support.journals import log_dataset

NewRun = Callable[..., RunFolder]


pytestmark = pytest.mark.usefixtures("store")


class Stored:
    """A run in MLflow."""

    def __init__(self, tracker: RunTracker) -> None:
        import mlflow

        assert tracker.mlflow_run_id is not None
        self.id = tracker.mlflow_run_id
        self.client = mlflow.MlflowClient(tracker.uri)
        self.run: Any = self.client.get_run(self.id)

    def points(self, key: str) -> list[tuple[int, float]]:
        return sorted((m.step, m.value) for m in self.client.get_metric_history(self.id, key))

    def files(self, folder: str | None = None) -> list[str]:
        return [file.path for file in self.client.list_artifacts(self.id, folder)]

    def table(self, file: str) -> Any:
        table = json.loads(Path(self.client.download_artifacts(self.id, file)).read_text())
        return {key: table[key] for key in ("columns", "data")}


def open_run(
    folder: RunFolder, home: Home, warnings: list[str] | None = None, **start: Any
) -> RunTracker:
    tracker = RunTracker(folder, None, home, warn=(warnings if warnings is not None else []).append)
    tracker.start("digits-dit", "digits", "dit", **start)
    return tracker


def picture(path: Path, shade: int = 128) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(path)
    return path


def test_everything_of_a_run_arrives(home: Home, new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run()
    params = {
        "model.depth": "9",
        "long": "x" * 9000,
        **{f"p.{index}": str(index) for index in range(250)},
    }
    tracker = open_run(folder, home, params=params, tags={"note": "y" * 9000})
    for step in range(1, 1201):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step, "train/lr": 1e-4})
    tracker.journal.log_metrics(1200, {"eval/nan": math.nan, "eval/high": math.inf})
    for step in (0, 600, 1200):
        tracker.log_image("samples/euler", step, picture(tmp_path / "outside" / f"{step}.png"))
    tracker.log_text("hello", "environment/packages.txt")
    tracker.log_table({"component": ["blocks", "head"], "parameters": [10, 2]}, "parameters.json")
    log_dataset(tracker, "f" * 64, {"train": 1500, "eval": 297})
    tracker.end("finished")
    assert tracker.close(30) == 0

    stored = Stored(tracker)
    info, data = stored.run.info, stored.run.data
    assert (info.status, info.run_name) == ("FINISHED", "digits-dit")
    assert info.artifact_uri.startswith(str(home.artifacts))
    assert data.tags["ditlab.run"] == folder.run_id and data.tags["ditlab.family"] == "dit"
    assert len(data.params) == 252 and data.params["model.depth"] == "9"
    assert len(data.params["long"]) <= PARAM_LENGTH and data.params["long"].endswith(
        "more characters)"
    )
    assert len(data.tags["note"]) <= TAG_LENGTH and data.tags["note"].endswith("more characters)")
    assert stored.points("train/loss") == [(step, 1 / step) for step in range(1, 1201)]
    assert math.isnan(data.metrics["eval/nan"]) and data.metrics["eval/high"] > 1e308
    images = [path for path in stored.files("images") if path.endswith(".png")]
    # the newest one first
    assert [int(path.split("+step+")[1].split("+")[0]) for path in images] == [0, 0, 600, 1200]
    assert all(path.startswith("images/samples~euler~") for path in images)
    assert stored.files("environment") == ["environment/packages.txt"]
    assert json.loads(data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "parameters.json", "type": "table"}
    ]
    assert stored.table("parameters.json") == {
        "columns": ["component", "parameters"],
        "data": [["blocks", 10], ["head", 2]],
    }
    (dataset,) = stored.run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("digits", "f" * 36)
    assert json.loads(dataset.dataset.profile) == {"train": 1500, "eval": 297}


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(
    home: Home, new_run: NewRun, tmp_path: Path
) -> None:
    folder = new_run()
    first = open_run(folder, home, params={"depth": "9", "workers": "1"})
    for step in range(1, 251):
        first.journal.log_metrics(step, {"train/loss": 1 / step})
    first.log_image("samples", 200, picture(tmp_path / "a.png"))
    first.end("interrupted")
    assert first.close(30) == 0
    assert Stored(first).run.info.status == "KILLED"

    params = {"depth": "9", "workers": "2", "new": "1"}
    second = open_run(folder, home, params=params)
    changes = second.resume_changes(params, {})
    assert changes == {"workers": ("1", "2")}
    second.log_resume(200, changes, "a rate")
    assert (
        second.resume_changes(params, {})
        == {}
        != second.resume_changes({**params, "workers": "1"}, {})
    )
    for step in range(201, 301):
        second.journal.log_metrics(step, {"train/loss": 1 / step})
    second.log_image("samples", 200, picture(tmp_path / "a.png"))
    second.end("finished")
    assert second.close(30) == 0

    stored = Stored(second)
    assert second.mlflow_run_id == first.mlflow_run_id
    assert stored.points("train/loss") == [(step, 1 / step) for step in range(1, 301)]
    assert stored.run.info.status == "FINISHED"
    assert stored.run.data.params == {"depth": "9", "workers": "1", "new": "1"}
    assert stored.run.data.tags["ditlab.resume.1"] == "after step 200: workers: 1 -> 2; a rate"
    # the picture and its thumbnail, and once more as the newest one
    assert len(stored.files("images")) == 4

    with RunTracker(folder, None, home) as later:  # as `ditlab evaluate` does, after the end
        later.journal.log_metrics(300, {"eval/distance": 2.5})
    assert Stored(later).points("eval/distance") == [(300, 2.5)]
    assert Stored(later).run.info.status == "FINISHED"


def test_records_sent_twice_arrive_once(home: Home, new_run: NewRun, tmp_path: Path) -> None:
    folder = new_run()
    tracker = open_run(folder, home, params={"depth": "9"})
    for step in range(1, 601):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    tracker.log_image("samples", 600, picture(tmp_path / "a.png"))
    tracker.log_table({"a": [1, 2]}, "table.json")
    log_dataset(tracker, "abc", {})
    tracker.end("finished")
    assert tracker.close(30) == 0

    # as if the process had died before it could write the cursor
    file = CursorFile(folder, tracker.uri)
    cursor = file.load()
    cursor.offset = 0
    file.save(cursor)
    assert sync(folder, None, home, warn=pytest.fail) == 0

    stored = Stored(tracker)
    assert stored.points("train/loss") == [(step, 1 / step) for step in range(1, 601)]
    assert len(stored.files("images")) == 4
    assert len(stored.run.inputs.dataset_inputs) == 1
    assert stored.table("table.json")["data"] == [[1], [2]]
    assert json.loads(stored.run.data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "table.json", "type": "table"}
    ]
    assert stored.run.info.status == "FINISHED"


def test_the_run_is_found_by_its_tag_when_the_cursor_is_lost(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    tracker.journal.log_metrics(1, {"train/loss": 1.0})
    assert tracker.close(30) == 0
    folder.journal.with_suffix(".cursor.json").unlink()
    assert sync(folder, None, home, warn=pytest.fail) == 0
    stored = Stored(tracker)
    assert len(stored.client.search_runs([stored.run.info.experiment_id])) == 1
    assert stored.points("train/loss") == [(1, 1.0)]


def test_a_new_store_is_filled_from_the_journal(
    home: Home, new_run: NewRun, tmp_path: Path, mlflow_template: Path
) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    tracker.journal.log_metrics(1, {"train/loss": 1.0})
    assert tracker.close(30) == 0
    shutil.copyfile(mlflow_template, tmp_path / "elsewhere.db")
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    assert sync(folder, elsewhere, home, warn=pytest.fail) == 0
    again = RunTracker(folder, elsewhere, home)
    again.close()
    assert Stored(again).points("train/loss") == [(1, 1.0)]


def test_a_refused_value_delays_no_other(home: Home, new_run: NewRun, tmp_path: Path) -> None:
    warnings: list[str] = []
    folder = new_run()
    tracker = open_run(folder, home, warnings, params={"depth": "9"})
    tracker.log_artifact(folder.path / "never-written.txt")
    # two processes that disagree
    tracker.journal.append("params", values={"depth": "10", "width": "64"})
    tracker.journal.log_metrics(1, {"train/loss = ☃": 1.0, "train/lr": 2.0})
    assert tracker.close(30) == 0
    stored = Stored(tracker)
    assert stored.run.data.params == {"depth": "9", "width": "64"}
    assert stored.run.data.metrics == {"train/loss _ _": 1.0, "train/lr": 2.0}
    assert len(warnings) == 2
    assert "never-written.txt is gone" in warnings[0] and "refused depth" in warnings[1]


def test_a_broken_artifact_store_delays_no_metric(
    home: Home, new_run: NewRun, tmp_path: Path
) -> None:
    warnings: list[str] = []
    folder = new_run()
    home.artifacts.write_text("a file where MLflow wants a folder")
    tracker = open_run(folder, home, warnings)
    tracker.log_text("spec", "spec.yaml")
    tracker.log_image("samples", 1, picture(tmp_path / "a.png"))
    tracker.journal.log_metrics(1, {"train/loss": 1.0})
    assert tracker.close(30) == 2
    assert Stored(tracker).points("train/loss") == [(1, 1.0)]
    assert len(warnings) == 1 and "spec.yaml" in warnings[0]
    home.artifacts.unlink()
    assert sync(folder, None, home, warn=pytest.fail) == 0
    assert sorted(Stored(tracker).files()) == ["images", "samples", "spec.yaml"]
    assert len(Stored(tracker).files("images")) == 4


@pytest.mark.slow  # `test_a_process_killed_at_random_moments` is of a server; 10 s of imports here
def test_a_killed_process_loses_nothing(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    code = f"""
import itertools, time
from ditlab.home import Home
from ditlab.tracking.tracker import RunTracker
home = Home.from_environment()
tracker = RunTracker(home.run("{folder.run_id}"), None, home)
tracker.start("digits-dit", "digits", "dit")
for step in itertools.count():
    tracker.journal.log_metrics(step, {{"train/loss": 1 / (step + 1)}})
    time.sleep(0.001)
    if step % 100 == 0:
        print(tracker.mlflow_run_id, flush=True)
"""
    process = Forked(code)
    while "None" in process.stdout.readline():
        pass
    process.kill()
    assert sync(folder, None, home, warn=pytest.fail) == 0
    logged = metric_history(folder)["train/loss"]
    assert len(logged.steps) > 100 and logged.steps.tolist() == list(range(len(logged.steps)))
    tracker = RunTracker(folder, None, home)
    tracker.close()
    assert Stored(tracker).points("train/loss") == list(
        zip(logged.steps.tolist(), logged.values.tolist(), strict=True)
    )


def test_a_run_deleted_in_mlflow_is_left_alone(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    tracker = open_run(folder, home)
    assert tracker.close(30) == 0
    Stored(tracker).client.delete_run(tracker.mlflow_run_id or "")
    warnings: list[str] = []
    again = open_run(folder, home, warnings)
    again.journal.log_metrics(1, {"train/loss": 1.0})
    assert again.close(30) > 0
    assert len(warnings) == 1 and "was deleted in MLflow" in warnings[0]


def test_a_trial_is_nested_under_its_sweep(home: Home, new_run: NewRun) -> None:
    sweep, trial = new_run("sweep"), new_run("trial")
    child = open_run(trial, home, tags={"ditlab.parent": sweep.run_id})
    assert child.close(30) == 0  # MLflow does not know the sweep yet
    parent = open_run(sweep, home)
    assert parent.close(30) == 0
    child = RunTracker(trial, None, home)
    child.end("finished")
    assert child.close(30) == 0
    assert Stored(child).run.data.tags["mlflow.parentRunId"] == parent.mlflow_run_id


def test_other_nodes_join_the_run(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    # logs from its first moment, without a start of its own
    other = RunTracker(folder, None, home, node=1)
    other.journal.log_metrics(0, {"system/node_1/cpu_utilization_percentage": 50.0})
    other.end("failed")  # node 0 alone says how a run ended
    main = open_run(folder, home)
    main.end("finished")
    assert main.close(30) == 0
    assert other.close(30) == 0
    assert other.mlflow_run_id == main.mlflow_run_id
    late = RunTracker(folder, None, home, node=2)
    late.start("digits-dit", "digits", "dit")  # nor does another node open an ended run again
    assert late.close(30) == 0
    stored = Stored(main)
    assert stored.points("system/node_1/cpu_utilization_percentage") == [(0, 50.0)]
    assert stored.run.info.status == "FINISHED"


def test_system_metrics_carry_mlflows_names_and_count_on(home: Home, new_run: NewRun) -> None:
    folder = new_run()
    for times in (1, 2):
        tracker = open_run(folder, home)
        tracker.watch_system(interval=0.05)
        while folder.journal.read_bytes().count(b"cpu_utilization_percentage") < 2 * times:
            time.sleep(0.01)
        assert tracker.close(30) == 0
    steps = [step for step, _ in Stored(tracker).points("system/cpu_utilization_percentage")]
    assert steps == list(range(len(steps))) and len(steps) >= 3
    assert "system/system_memory_usage_megabytes" in Stored(tracker).run.data.metrics


def test_images_are_named_as_mlflow_names_them(home: Home, new_run: NewRun, tmp_path: Path) -> None:
    """Its UI finds them by name; we choose the name, so that a picture sent twice shows once."""
    tracker = open_run(new_run(), home)
    tracker.log_image("samples/euler", 600, picture(tmp_path / "a.png"))
    assert tracker.close(30) == 0
    stored = Stored(tracker)
    stored.client.log_image(
        stored.id, np.zeros((8, 8, 3), np.uint8), key="samples/euler/steps", step=600
    )
    shapes = [
        re.sub(r"step\+0*(\d+)\+timestamp\+\d+\+[0-9a-f-]{36}", r"step+\1+timestamp+T+UUID", path)
        for path in stored.files("images")
        if "~latest+" not in path
    ]
    assert len(shapes) == 4 and len(set(shapes)) == 2
    assert stored.client.get_run(stored.id).data.tags["mlflow.loggedImages"] == "True"
