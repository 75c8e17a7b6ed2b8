"""Transfer of a journal into a real MLflow store: everything arrives, and arrives once."""

import json
import math
import re
import time

import numpy as np
import pytest

from ditlab.tracking.names import PARAM_LENGTH, TAG_LENGTH
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.housekeeping.sync import sync
from support.journals import log_dataset
from support.stored import Stored, draw, send_again

pytestmark = pytest.mark.usefixtures("store")
LOSSES = [(step, 1 / step) for step in range(1, 1201)]


def log_losses(tracker, first, last):
    for step, value in LOSSES[first - 1 : last]:
        tracker.journal.log_metrics(step, {"train/loss": value})


def test_everything_of_a_run_arrives_however_often_it_is_sent(home, new_run, tracked):
    folder = new_run()
    params = {"model.depth": "9", "long": "x" * 9000}
    params |= {f"p.{index}": str(index) for index in range(250)}
    tracker = tracked(folder, params=params, tags={"note": "y" * 9000})
    log_losses(tracker, 1, 1200)
    tracker.journal.log_metrics(1200, {"eval/nan": math.nan, "eval/high": math.inf})
    tracker.log_text("hello", "environment/packages.txt")
    tracker.log_table({"component": ["blocks", "head"], "parameters": [10, 2]}, "parameters.json")
    log_dataset(tracker, "f" * 64, {"train": 1500, "eval": 297})
    tracker.end("finished")
    assert tracker.close(30) == 0

    for _ in range(2):
        stored = Stored(tracker)
        info, data = stored.run.info, stored.run.data
        assert (info.status, info.run_name) == ("FINISHED", "digits-dit")
        assert info.artifact_uri.startswith(str(home.artifacts))
        assert data.tags["ditlab.run"] == folder.run_id and data.tags["ditlab.family"] == "dit"
        assert len(data.params) == 252 and data.params["model.depth"] == "9"
        for text, limit in ((data.params["long"], PARAM_LENGTH), (data.tags["note"], TAG_LENGTH)):
            assert len(text) <= limit and text.endswith("more characters)")
        assert stored.points("train/loss") == LOSSES
        assert math.isnan(data.metrics["eval/nan"]) and data.metrics["eval/high"] > 1e308
        assert stored.files("environment") == ["environment/packages.txt"]
        tables = json.loads(data.tags["mlflow.loggedArtifacts"])
        assert tables == [{"path": "parameters.json", "type": "table"}]
        table = json.loads(stored.file("parameters.json").read_text())
        assert table["columns"] == ["component", "parameters"]
        assert table["data"] == [["blocks", 10], ["head", 2]]
        (dataset,) = stored.run.inputs.dataset_inputs
        assert (dataset.dataset.name, dataset.dataset.digest) == ("digits", "f" * 36)
        assert json.loads(dataset.dataset.profile) == {"train": 1500, "eval": 297}
        send_again(tracker, home)


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(home, new_run, tracked, tmp_path):
    folder = new_run()
    first = tracked(folder, params={"depth": "9", "workers": "1"})
    log_losses(first, 1, 250)
    first.log_image("samples", 200, draw(tmp_path / "a.png"))
    first.end("interrupted")
    assert first.close(30) == 0
    assert Stored(first).run.info.status == "KILLED"

    params = {"depth": "9", "workers": "2", "new": "1"}
    second = tracked(folder, params=params)
    changes = second.resume_changes(params, {})
    assert changes == {"workers": ("1", "2")}
    second.log_resume(200, changes, "a rate")
    assert second.resume_changes(params, {}) == {}
    assert second.resume_changes({**params, "workers": "1"}, {})
    log_losses(second, 201, 300)
    second.log_image("samples", 200, draw(tmp_path / "a.png"))
    second.end("finished")
    assert second.close(30) == 0

    stored = Stored(second)
    assert stored.id == first.mlflow_run_id
    assert stored.points("train/loss") == LOSSES[:300]
    assert stored.run.info.status == "FINISHED"
    assert stored.run.data.params == {"depth": "9", "workers": "1", "new": "1"}
    assert stored.tags["ditlab.resume.1"] == "after step 200: workers: 1 -> 2; a rate"
    # the picture and its thumbnail, and once more as the newest one
    assert len(stored.files("images")) == 4

    with RunTracker(folder, None, home) as later:  # as `ditlab evaluate` does, after the end
        later.journal.log_metrics(300, {"eval/distance": 2.5})
    assert Stored(later).points("eval/distance") == [(300, 2.5)]
    assert Stored(later).run.info.status == "FINISHED"


def test_a_refused_value_delays_no_other(new_run, tracked):
    folder = new_run()
    tracker = tracked(folder, params={"depth": "9"})
    tracker.log_artifact(folder.path / "never-written.txt")
    # two processes that disagree
    tracker.journal.append("params", values={"depth": "10", "width": "64"})
    tracker.journal.log_metrics(1, {"train/loss = ☃": 1.0, "train/lr": 2.0})
    assert tracker.close(30) == 0
    data = Stored(tracker).run.data
    assert data.params == {"depth": "9", "width": "64"}
    assert data.metrics == {"train/loss _ _": 1.0, "train/lr": 2.0}
    gone, refused = tracker.said
    assert "never-written.txt is gone" in gone and "refused depth" in refused


def test_a_broken_artifact_store_delays_no_metric(home, new_run, tracked, tmp_path):
    folder = new_run()
    home.artifacts.write_text("a file where MLflow wants a folder")
    tracker = tracked(folder)
    tracker.log_text("spec", "spec.yaml")
    tracker.log_image("samples", 1, draw(tmp_path / "a.png"))
    log_losses(tracker, 1, 1)
    assert tracker.close(30) == 2
    stored = Stored(tracker)
    assert stored.points("train/loss") == LOSSES[:1]
    (warning,) = tracker.said
    assert "spec.yaml" in warning
    home.artifacts.unlink()
    assert sync(folder, None, home, warn=pytest.fail) == 0
    assert sorted(stored.files()) == ["images", "samples", "spec.yaml"]
    assert len(stored.files("images")) == 4


def test_a_run_deleted_in_mlflow_is_left_alone(new_run, tracked):
    folder = new_run()
    tracker = tracked(folder)
    assert tracker.close(30) == 0
    Stored(tracker).client.delete_run(tracker.mlflow_run_id)
    again = tracked(folder)
    log_losses(again, 1, 1)
    assert again.close(30) > 0
    (warning,) = again.said
    assert "was deleted in MLflow" in warning


def test_a_trial_is_nested_under_its_sweep(home, new_run, tracked):
    sweep, trial = new_run("sweep"), new_run("trial")
    child = tracked(trial, tags={"ditlab.parent": sweep.run_id})
    assert child.close(30) == 0  # MLflow does not know the sweep yet
    parent = tracked(sweep)
    assert parent.close(30) == 0
    child = RunTracker(trial, None, home)
    child.end("finished")
    assert child.close(30) == 0
    assert Stored(child).tags["mlflow.parentRunId"] == parent.mlflow_run_id


def test_other_nodes_join_the_run(home, new_run, tracked):
    folder = new_run()
    load = "system/node_1/cpu_utilization_percentage"
    # logs from its first moment, without a start of its own
    other = RunTracker(folder, None, home, node=1)
    other.journal.log_metrics(0, {load: 50.0})
    other.end("failed")  # node 0 alone says how a run ended
    main = tracked(folder)
    main.end("finished")
    assert main.close(30) == other.close(30) == 0
    assert other.mlflow_run_id == main.mlflow_run_id
    late = RunTracker(folder, None, home, node=2)
    late.start("digits-dit", "digits", "dit")  # nor does another node open an ended run again
    assert late.close(30) == 0
    stored = Stored(main)
    assert stored.points(load) == [(0, 50.0)] and stored.run.info.status == "FINISHED"


def test_system_metrics_carry_mlflows_names_and_count_on(new_run, tracked):
    folder = new_run()
    for times in (1, 2):
        tracker = tracked(folder)
        tracker.watch_system(interval=0.05)
        while folder.journal.read_bytes().count(b"cpu_utilization_percentage") < 2 * times:
            time.sleep(0.01)
        assert tracker.close(30) == 0
    stored = Stored(tracker)
    steps = [step for step, _ in stored.points("system/cpu_utilization_percentage")]
    assert steps == list(range(len(steps))) and len(steps) >= 3
    assert "system/system_memory_usage_megabytes" in stored.run.data.metrics


def test_images_are_named_as_mlflow_names_them(new_run, tracked, tmp_path):
    """Its UI finds them by name; we choose the name, so that a picture sent twice shows once."""
    tracker = tracked(new_run())
    tracker.log_image("samples/euler", 600, draw(tmp_path / "a.png"))
    assert tracker.close(30) == 0
    stored = Stored(tracker)
    image = np.zeros((8, 8, 3), np.uint8)
    stored.client.log_image(stored.id, image, key="samples/euler/steps", step=600)
    shapes = [
        re.sub(r"step\+0*(\d+)\+timestamp\+\d+\+[0-9a-f-]{36}", r"step+\1+timestamp+T+UUID", path)
        for path in stored.files("images")
        if "~latest+" not in path
    ]
    assert len(shapes) == 4 and len(set(shapes)) == 2
    assert Stored(tracker).tags["mlflow.loggedImages"] == "True"
