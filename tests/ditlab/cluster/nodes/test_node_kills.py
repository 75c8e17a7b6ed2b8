"""Nodes of a real cluster are killed at random moments: an elastic job goes on with what is left,
grows again with what comes, and loses nothing that was durable."""

import random
import threading
import time

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import list_runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.kills import Scene, check_checkpoints
from support.clusters.lab import lab
from support.clusters.ray_jobs import RayJob
from support.trainings.workers import tiny, train_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

BATCH, EVERY, EVALUATED, EARLY = 32, 40, 200, 150
MOMENTS = ("any", "checkpoint", "evaluation", "start-up", "any")


def written_spec(folder, ours):
    """Elastic, and without an end: the machine's speed decides when it is stopped."""
    experiment = tiny(
        name="killed",
        training__steps=1_000_000,
        resources={"workers": {"min": 1, "max": 2, "interval": 3.0}, "cpus_per_worker": 1},
        checkpoint={"every": EVERY, "keep": 3, "storage": ours.storage},
        evaluation={"every": EVALUATED, "samples": 32, "limit": 128},
        sampling={"steps": 25},
        tracking={"budget": None},  # every step is looked for, the nodes' load, too
    )
    path = folder / "spec.yaml"
    path.write_text(dump_yaml(experiment.to_dict()))
    return path


def strike(scene, draw, moment):
    """Kills a node, waits for one worker to go on, gives it a second node back."""
    node = scene.node_of(draw.randrange(2))
    if moment == "any":
        time.sleep(draw.uniform(0, 5))
    elif moment == "checkpoint":
        wait_for_saving(scene)
    elif moment == "evaluation":
        wait_for_evaluation(scene)
    scene.kill(node)
    if moment == "start-up":
        scene.kill(starting_node(scene, draw))
    scene.grow()


def wait_for_saving(scene):
    """Until the storage has a shard to take; its answer is held back meanwhile."""
    sending = threading.Event()

    def hear(request):
        if "/shard-" in request and not request.startswith(("GET", "HEAD")):
            sending.set()
            time.sleep(1)

    scene.lab.s3.before = hear
    assert sending.wait(120)
    scene.lab.s3.before = lambda request: None


def wait_for_evaluation(scene):
    due = (scene.run.look().step // EVALUATED + 1) * EVALUATED
    scene.wait(lambda run: run.step >= due, 240, f"step {due}")
    assert scene.run.look().evaluated < due, "the evaluation was over too soon"


def starting_node(scene, draw):
    """A new node that has a worker's process, which has not begun to train."""
    groups, node = len(scene.run.look().groups), scene.add()
    wait_until(
        lambda: any("RayTrainWorker" in each for each in node.titles()),
        120,
        "a worker on the new node",
    )
    time.sleep(draw.uniform(0, 2))
    assert len(scene.run.look().groups) == groups, "it had begun"
    return node


def test_killed_nodes_cost_nothing_that_was_durable(tmp_path):
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with lab(tmp_path) as ours:
        ours.nodes.start_head(num_cpus=0)
        nodes = [ours.nodes.add_node(), ours.nodes.add_node()]
        spec = written_spec(tmp_path, ours)
        scene = Scene(ours, Followed(ours.home, "killed"), nodes, ["train", spec, "--json"])
        scene.wait(lambda run: run.step > EARLY, 300, f"step {EARLY}")
        for moment in draw.sample(MOMENTS, len(MOMENTS)):
            strike(scene, draw, moment)
        lost = list(scene.run.failures)
        last = stopped_and_resumed(scene, spec)
        assert lost and set(lost) <= {"lost_node", "no_room"}, lost
        assert len(scene.kills) >= 5 and {*scene.kills} == {False, True}
        check_nothing_lost(scene, last, tmp_path)


def stopped_and_resumed(scene, spec):
    """`ray job stop` while two nodes train; then the same run goes on for some steps. Returns its
    last step.
    """
    since = scene.run.groups[-1].time
    wait_until(
        lambda: Followed(scene.lab.home, "killed", node=1).look().sampled > since,
        60,
        "the second node's load",
    )
    scene.job.stop()
    assert scene.job.wait(120) == "STOPPED", scene.job.log()
    [record] = list_runs(Home(scene.lab.home))
    assert record.status == "interrupted" and record.step == scene.run.look().step, scene.job.log()
    last = record.step + 10
    words = ["train", spec, "--json", "--resume", record.run_id, "--set", f"training.steps={last}"]
    scene.job = RayJob(scene.lab.nodes, words)
    assert scene.job.wait(240) == "SUCCEEDED", scene.job.log()
    return last


def check_nothing_lost(scene, last, folder):
    record = scene.finished(last)
    tracked = scene.lab.mlflow.run(record.run_id)["data"]
    tags = {tag["key"]: tag["value"] for tag in tracked["tags"]}
    assert tags["ditlab.failure"] == "lost_node" and len(scene.run.groups[-1].nodes) == 2
    names = [metric["key"].split("/") for metric in tracked["metrics"]]
    assert {name[1] for name in names if name[0] == "system"} == {"node_0", "node_1"}
    check_checkpoints(CheckpointStore.at(scene.lab.storage).child(record.run_id), last, BATCH)

    _, alone = train_here(
        tiny(training__steps=EARLY), folder / "alone", folder / "alone" / "checkpoints"
    )
    history = metric_history(Home(scene.lab.home).run(record.run_id))["train/loss"]
    for step, loss in zip(
        history.steps[:EARLY], history.values, strict=False
    ):  # later on, rounding makes any two differ
        assert loss == pytest.approx(alone.losses[step], rel=1e-3)
