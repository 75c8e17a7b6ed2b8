"""Training through Ray Train workers, on one Ray instance for the whole session."""

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
from ditlab.interface.training import train
from ditlab.tracking.journal.history import metric_history
from ditlab.tracking.records import list_runs, read_record
from support.clusters.unbroken import EVERY, STEPS
from support.trainings.workers import newest, tiny, train_here


def mlflow_runs(home, name):
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return client, client.search_runs(experiments, f"attributes.run_name = '{name}'")


def test_two_workers_under_ray_train_as_one_process_does(unbroken, tmp_path):
    result = unbroken.result
    assert (result.status, result.step) == ("finished", STEPS)
    history = metric_history(Home(unbroken.home).run(result.run_id))
    assert history["train/loss"].steps == list(range(1, STEPS + 1))
    _, alone = train_here(tiny(), unbroken.home, tmp_path / "alone")
    for loss, expected in zip(history["train/loss"].values[:6], alone.losses.values(), strict=True):
        assert loss == pytest.approx(expected, rel=2e-5)


def test_the_result_has_every_field_of_the_json_line(unbroken):
    shown = json.loads(json.dumps(unbroken.result.to_dict()))
    assert set(shown) == {"run_id", "status", "step", "metrics", "checkpoint", "tracking_uri"}
    assert {"train/loss", "train/velocity", "train/lr", "train/grad_norm", "eval/velocity"} <= set(shown["metrics"])
    assert open_checkpoint(shown["checkpoint"]).manifest.step == STEPS


def test_mlflow_holds_one_run_with_parameters_metrics_and_artifacts(unbroken):
    client, runs = mlflow_runs(unbroken.home, "unbroken")
    (run,) = [run for run in runs if run.data.tags["ditlab.run"] == unbroken.result.run_id]
    assert run.info.status == "FINISHED"
    assert run.data.tags["ditlab.numerics"] == "1" and run.data.tags["ditlab.workers"] == "2"
    parameters = run.data.params
    assert parameters["model.family"] == "dit" and parameters["engine.zero.stage"] == "2"
    assert parameters["spec_hash"] == unbroken.experiment.content_hash()
    components = {name for name in parameters if name.startswith("parameters.")}
    assert {"parameters.total", "parameters.blocks", "parameters.head"} <= components
    points = client.get_metric_history(run.info.run_id, "train/velocity")
    assert sorted(point.step for point in points) == list(range(1, STEPS + 1))
    evaluated = client.get_metric_history(run.info.run_id, "eval/velocity")
    assert sorted(point.step for point in evaluated) == [0, EVERY, STEPS]
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"spec.yaml", "environment.txt", "parameters.json", "export", "images"} <= artifacts
    assert {file.path for file in client.list_artifacts(run.info.run_id, "export")} == {
        "export/spec.yaml",
        "export/weights.safetensors",
    }


def test_checkpoints_are_written_by_all_workers_and_kept_by_policy(unbroken):
    folder = Home(unbroken.home).run(unbroken.result.run_id)
    assert CheckpointStore.at(folder.checkpoints).steps() == [56, STEPS]
    shards = sorted(path.name[:20] for path in (folder.checkpoints / f"step-{STEPS:08d}").glob("*.safetensors"))
    assert shards == ["shard-00000-of-00002", "shard-00001-of-00002"]
    assert read_record(folder).status == "finished"


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
    at = stopped.step
    assert stopped.status == "interrupted" and 10 <= at < 2000
    assert newest(runs / stopped.run_id / "checkpoints").manifest.step == at

    longer = tiny(name="stopped", training__steps=at + 3, checkpoint__every=None)
    resumed = train(longer, local=True, resume=stopped.run_id)  # a run may go on without Ray
    assert (resumed.run_id, resumed.status, resumed.step) == (stopped.run_id, "finished", at + 3)
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


def test_the_first_failure_of_a_group_is_kept(ray):
    """The other workers fail because the first one is gone, and record that after it."""
    channel = KeyValueChannel("a-launch")
    channel.put_if_absent("failure", {"kind": "UserError"})
    channel.put_if_absent("failure", {"kind": "crash"})
    channel.child("group").put("outcome", {})
    assert channel.get("failure") == {"kind": "UserError"}
    channel.clear()
    assert channel.get("failure") is None and channel.child("group").get("outcome") is None
