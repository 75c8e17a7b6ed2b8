"""Nodes that come, go and give notice: workers follow, and every step sees its own samples,
once.
"""

import json
import os
import time

import pytest
from ray.cluster_utils import Cluster

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import has_step, tracked, wait_until
from support.clusters.followed import Followed
from support.clusters.nodes import QUICK
from support.command import start_process
from support.trainings.workers import newest, tiny, train_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(monkeypatch):
    """A head and one more node, one core each."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    # Its end would cut this process off from the instance that other tests share.
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_reset", lambda: None)
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def run(cluster, tmp_path):
    """`run(**changes)`: a training on the cluster, as a process."""
    started = []

    def start(name, **changes):
        workers = {"min": 1, "max": 2, "interval": 3.0}
        fixed = {
            "resources": {"workers": workers, "cpus_per_worker": 1},
            "tracking": {"system_metrics": False, "budget": None},  # every step is looked for
        }
        experiment = tiny(name=name, **{**fixed, **changes})
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(dump_yaml(experiment.to_dict()))
        environment = {}
        # as it is while other tests share a Ray instance
        if os.environ.get("RAY_AUTH_MODE") != "token":
            # another cluster's: this one wants none, and it is not shown
            environment["RAY_AUTH_TOKEN"] = "f" * 32
        place = ("--address", cluster.address)
        process = start_process(
            "train", spec, "--json", *place, home=tmp_path / "home", **environment
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()


def groups(home, name):
    """The numbers of workers that the run was carried on by, in order."""
    return [group.workers for group in Followed(home, name).look().groups]


def test_a_lost_node_and_a_new_one_cost_no_sample(cluster, run, tmp_path):
    home, name, steps = tmp_path / "home", "elastic", 4000
    second = cluster.add_node(num_cpus=1)
    experiment = tiny(training__steps=steps)
    process = run(name, training__steps=steps, checkpoint={"every": 50, "keep": 2})
    wait_until(lambda: has_step(home, name, 60), 300, "step 60")
    cluster.remove_node(second, allow_graceful=False)
    run = Followed(home, name)
    before = run.look().step
    wait_until(
        lambda: run.look().step > before + 20 or process.poll() is not None, 150, "going on alone"
    )
    cluster.add_node(num_cpus=1)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    carried = groups(home, name)
    assert carried[0] == 2 and 1 in carried and carried[-1] == 2, (carried, err)
    result = json.loads(out.splitlines()[-1])
    reader = newest(Home(home).run(result["run_id"]).checkpoints)
    assert reader.manifest.position == steps * 32
    points, tags, status = tracked(home, name)
    assert [step for step, _ in points["train/loss"]] == sorted(
        {step for step, _ in points["train/loss"]}
    )
    _, alone = train_here(experiment, tmp_path / "alone", tmp_path / "alone" / "checkpoints")
    # later on, rounding makes two trainings of any two runs
    for step, loss in points["train/loss"][:300]:
        assert loss == pytest.approx(alone.losses[step], rel=1e-3)
    assert tags["ditlab.failure"] in ("lost_node", "lost_worker") and status == "FINISHED"


def test_a_node_that_will_be_taken_away_costs_no_step_and_is_not_counted(cluster, run, tmp_path):
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    home, name = tmp_path / "home", "spot"
    second = cluster.add_node(num_cpus=1)
    resources = {
        "workers": {"min": 1, "max": 2, "interval": 600.0},
        "cpus_per_worker": 1,
        "max_failures": 0,
    }
    process = run(name, training__steps=3000, checkpoint={"every": None}, resources=resources)
    wait_until(lambda: has_step(home, name, 60), 300, "step 60")
    deadline = int((time.time() + 60) * 1000)
    reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = GcsClient(address=cluster.address).drain_node(
        second.node_id, reason, "spot", deadline
    )
    assert accepted, why
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert "a node will be taken away: saving" in err and "preempted:" in err
    assert groups(home, name) == [2, 1], err
    points, tags, _ = tracked(home, name)
    assert [step for step, _ in points["train/loss"]] == list(range(1, 3001))
    assert tags["ditlab.failure"] == "preempted"
