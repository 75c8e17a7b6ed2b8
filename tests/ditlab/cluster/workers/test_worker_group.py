"""Training through Ray Train workers, on one Ray instance for the whole file."""

import json
import os
import signal
import threading
import time

import mlflow
import pytest

from ditlab.checkpoints.store import CheckpointStore, open_checkpoint
from ditlab.cluster.workers.channel import KeyValueChannel
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.runs.start import start_run
from ditlab.tracking.journal.history import metric_history
from ditlab.tracking.records import list_runs, read_record
from support.workers import newest, tiny, train_here


@pytest.fixture(scope="module")
def finished(ray, home):
    """A run of two workers at ZeRO 2, finished."""
    os.environ["DITLAB_HOME"] = str(home)
    experiment = tiny(
        resources__workers=2,
        engine__zero={"stage": 2},
        evaluation={"every": 3, "samples": 4, "limit": 64},
        sampling={"steps": 2},
    )
    return experiment, start_run(experiment, None, local=False, remote=False, dry_run=False).go(local=False)


def mlflow_runs(home, name):
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return client, client.search_runs(experiments, f"attributes.run_name = '{name}'")


def test_two_workers_under_ray_train_as_one_process_does(finished, home, tmp_path):
    _, result = finished
    assert (result.outcome.status, result.outcome.step, result.exit_code) == ("finished", 6, 0)
    history = metric_history(Home(home).run(result.run_id))
    _, alone = train_here(tiny(), home, tmp_path / "alone")
    assert history["train/loss"].steps == [1, 2, 3, 4, 5, 6]
    for loss, expected in zip(history["train/loss"].values, alone.losses.values(), strict=True):
        assert loss == pytest.approx(expected, rel=2e-5)


def test_the_result_names_everything_that_json_promises(finished):
    _, result = finished
    shown = json.loads(json.dumps(result.as_dict()))
    assert set(shown) == {"run_id", "status", "step", "metrics", "checkpoint", "tracking_uri"}
    assert {"train/loss", "train/velocity", "train/lr", "train/grad_norm", "eval/velocity"} <= set(shown["metrics"])
    assert open_checkpoint(shown["checkpoint"]).manifest.step == 6


def test_mlflow_holds_one_run_with_all_that_a_reviewer_looks_for(finished, home):
    experiment, result = finished
    client, runs = mlflow_runs(home, "tiny")
    (run,) = [run for run in runs if run.data.tags["ditlab.run"] == result.run_id]
    assert run.info.status == "FINISHED"
    parameters = run.data.params
    assert parameters["model.family"] == "dit" and parameters["engine.zero.stage"] == "2"
    assert parameters["spec_hash"] == experiment.content_hash()
    components = {name for name in parameters if name.startswith("parameters.")}
    assert {"parameters.total", "parameters.blocks", "parameters.head"} <= components
    points = client.get_metric_history(run.info.run_id, "train/velocity")
    assert sorted(point.step for point in points) == [1, 2, 3, 4, 5, 6]
    assert sorted(point.step for point in client.get_metric_history(run.info.run_id, "eval/velocity")) == [0, 3, 6]
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"spec.yaml", "environment.txt", "parameters.json", "export", "images"} <= artifacts
    assert {file.path for file in client.list_artifacts(run.info.run_id, "export")} == {
        "export/spec.yaml",
        "export/weights.safetensors",
    }


def test_checkpoints_are_written_by_all_workers_and_kept_by_policy(finished, home):
    _, result = finished
    folder = Home(home).run(result.run_id).checkpoints
    assert CheckpointStore.at(folder).steps() == [3, 6]
    shards = sorted(path.name[:20] for path in (folder / "step-00000006").glob("*.safetensors"))
    assert shards == ["shard-00000-of-00002", "shard-00001-of-00002"]
    assert read_record(Home(home).run(result.run_id)).status == "finished"


def test_ctrl_c_saves_and_resume_continues_the_same_tracked_run(go, home):
    experiment = tiny(name="stopped", training__steps=2000, checkpoint__every=None)
    runs = Home(home).runs

    def interrupt():
        """Ctrl-C as soon as the new run has logged ten steps."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for journal in runs.glob("*/journal.jsonl"):
                if '"name":"stopped"' in journal.read_text() and '"step":10,' in journal.read_text():
                    os.kill(os.getpid(), signal.SIGINT)
                    return
            time.sleep(0.05)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    stopped = go(experiment)
    watcher.join()
    assert (stopped.outcome.status, stopped.exit_code) == ("interrupted", 130)
    at = stopped.outcome.step
    assert 10 <= at < 2000
    assert newest(runs / stopped.run_id / "checkpoints").manifest.step == at

    longer = tiny(name="stopped", training__steps=at + 3, checkpoint__every=None, resources__workers=2)
    resumed = go(longer, resume=stopped.run_id)
    assert (resumed.run_id, resumed.outcome.status, resumed.outcome.step) == (stopped.run_id, "finished", at + 3)
    client, tracked = mlflow_runs(home, "stopped")
    (run,) = tracked
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(steps) == list(range(1, at + 4))


@pytest.mark.slow
def test_a_diverging_run_fails_with_one_sentence(go, home):
    words = r"(nan|inf) at step \d+, as in the 10 steps before it: training diverged; lower optimizer.lr"
    spec = {"optimizer": {"kind": "adamw", "lr": 1e30}, "training": {"steps": 40, "clip": {"kind": "none"}}}
    with pytest.raises(RunFailed, match=words):
        go(tiny(name="diverging", **spec))
    (record,) = [record for record in list_runs(Home(home)) if record.name == "diverging"]
    assert record.status == "failed" and "diverged" in record.message


def test_the_first_worker_to_fail_is_the_one_that_is_heard(ray):
    """The others fail because it is gone, and say so after it."""
    board = KeyValueChannel("a-launch")
    board.put_first("failure", {"kind": "UserError"})
    board.put_first("failure", {"kind": "crash"})
    assert board.get("failure") == {"kind": "UserError"}
    board.clear()
    assert board.get("failure") is None
