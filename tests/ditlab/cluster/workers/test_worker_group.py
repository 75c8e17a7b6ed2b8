"""Training through Ray Train workers, on one Ray instance for the whole session.

The start of a group of workers costs as much as many small trainings: one run has two of them, and
tells of all.
"""

import json
import os
import random
import signal
from pathlib import Path
from typing import NamedTuple

import mlflow
import pytest

from ditlab.api.training import TrainingResult, train
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.channel import KeyValueChannel
from ditlab.home import Home
from ditlab.numerics import NUMERICS_VERSION
from ditlab.tracking.records import read_record
from support.clusters.faults import in_turn, kill_worker, tracked
from support.clusters.unbroken import EVERY, broken, checkpoint_of
from support.trainings.timings import TIMINGS
from support.trainings.workers import logged, newest, same_state, train_workers

NAME = "broken"
CTRL_C = 45
"""Step after which Ctrl-C is pressed."""


class Stopped(NamedTuple):
    """A run on two workers; kill -9 ended one at a random step, and Ctrl-C the two that came in
    their place.
    """

    result: TrainingResult
    status: str
    """Status in `run.json`."""
    steps: list[int]
    """Checkpoints."""
    shards: list[str]
    """Files of the last checkpoint."""
    state: CheckpointReader


@pytest.fixture(scope="module")
def stopped(ray, at_home):
    draw = random.Random(0)
    step, worker = draw.randrange(1, CTRL_C), draw.randrange(2)
    experiment = broken(NAME, training__steps=2000, resources__cpus_per_worker=1)
    with in_turn(
        at_home,
        NAME,
        (step, kill_worker(worker)),
        (CTRL_C, lambda: os.kill(os.getpid(), signal.SIGINT)),
    ):
        result = train(experiment, warn=print)
    folder = Home(at_home).run(result.run_id)
    last = folder.checkpoints / f"step-{result.step:08d}"
    return Stopped(
        result,
        read_record(folder).status,
        CheckpointStore.at(folder.checkpoints).steps(),
        sorted(path.name[:20] for path in last.glob("*.safetensors")),
        checkpoint_of(at_home, result.run_id),
    )


@pytest.fixture(scope="module")
def resumed(stopped):
    """Continuation of the stopped run by three steps, on one worker without Ray."""
    longer = broken(
        NAME, training__steps=stopped.result.step + 3, checkpoint__every=None, resources__workers=1
    )
    return train(longer, local=True, resume=stopped.result.run_id)


@pytest.fixture(scope="module")
def points(at_home, resumed):
    """Metrics of the whole run in MLflow."""
    return tracked(at_home, NAME)[0]


@pytest.mark.timeout(600)
def test_a_killed_worker_costs_no_step_and_no_bit(stopped, at_home, points, tmp_path):
    """Two plain processes that nobody interrupts come to the same, Ray or not."""
    at = stopped.result.step
    train_workers(
        [(broken("plain", training__steps=at, resources__cpus_per_worker=1), at_home, tmp_path)]
    )
    assert same_state(stopped.state, newest(tmp_path))
    expected = {}
    for step, values in sorted(logged(tmp_path).items()):
        for name, value in values.items():
            if not name.startswith(TIMINGS) and (name.startswith("train/") or step % EVERY == 0):
                expected.setdefault(name, []).append((step, value))
    assert {"train/loss", "train/grad_norm", "eval/velocity"} <= set(expected)
    for name, each in expected.items():
        assert [point for point in points[name] if point[0] <= at] == each, name
    _, tags, _ = tracked(at_home, NAME)
    assert (tags["ditlab.failure"], tags["ditlab.failures"]) == ("lost_worker", "1")


def test_ctrl_c_saves_and_resume_continues_the_same_tracked_run(stopped, resumed, at_home, points):
    result = stopped.result
    assert result.status == stopped.status == "interrupted" and CTRL_C <= result.step < 2000
    assert stopped.state.manifest.step == result.step
    assert (resumed.run_id, resumed.status) == (result.run_id, "finished")
    assert resumed.step == result.step + 3
    assert read_record(Home(at_home).run(result.run_id)).status == "finished"
    for name in ("train/loss", "train/velocity"):
        assert [step for step, _ in points[name]] == list(range(1, resumed.step + 1))


def test_checkpoints_are_written_by_all_workers_and_kept_by_policy(stopped):
    at = stopped.result.step
    assert stopped.steps == [(at - 1) // 7 * 7, at]
    assert stopped.shards == ["shard-00000-of-00002", "shard-00001-of-00002"]


def test_mlflow_holds_one_run_with_parameters_metrics_and_artifacts(resumed, at_home):
    client = mlflow.MlflowClient(f"sqlite:///{at_home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"attributes.run_name = '{NAME}'")
    assert run.info.status == "FINISHED" and run.data.tags["ditlab.run"] == resumed.run_id
    facts = json.loads(Path(client.download_artifacts(run.info.run_id, "facts.json")).read_text())
    assert facts["ditlab.numerics"] == str(NUMERICS_VERSION)
    parameters = run.data.params
    assert parameters["model.family"] == "dit" and parameters["engine.zero.stage"] == "2"
    first = broken(NAME, training__steps=2000, resources__cpus_per_worker=1)
    assert parameters["spec_hash"] == first.content_hash()  # MLflow's parameters never change
    assert facts["ditlab.workers"] == "1"  # those of the resumed run
    assert {"parameters.total", "parameters.blocks", "parameters.head"} <= parameters.keys()
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"spec.yaml", "environment.txt", "parameters.json", "samples", "images"} <= artifacts
    assert client.search_logged_models(
        [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
    )


def test_the_first_failure_of_a_group_is_kept(ray):
    """The other workers fail because the first one is gone, and record that after it."""
    channel = KeyValueChannel("a-launch")
    channel.put("failure", {"kind": "UserError"}, overwrite=False)
    channel.put("failure", {"kind": "crash"}, overwrite=False)
    channel.child("group").put("outcome", {})
    assert channel.get("failure") == {"kind": "UserError"}
    channel.clear()
    assert channel.get("failure") is None and channel.child("group").get("outcome") is None
