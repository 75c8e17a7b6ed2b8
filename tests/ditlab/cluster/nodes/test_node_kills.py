"""Nodes of a real cluster are killed at random moments: an elastic job goes on with what is left,
grows again with what comes, and loses nothing that was durable."""

import random
import threading
import time
from pathlib import Path

import pytest

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import list_runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.kills import Scene
from support.clusters.lab import Lab, lab
from support.clusters.nodes import RayNode
from support.clusters.ray_jobs import RayJob
from support.trainings.workers import tiny, train_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

BATCH, EVERY, EVALUATED, EARLY = 32, 40, 200, 150
MOMENTS = ("any", "checkpoint", "evaluation", "start-up", "any")


def written_spec(folder: Path, ours: Lab) -> Path:
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


class Killer:
    """Chooses nodes and moments."""

    def __init__(self, scene: Scene, draw: random.Random) -> None:
        self._scene, self._draw = scene, draw

    def strike(self, moment: str) -> None:
        """Kills a node, waits for one worker to go on, gives it a second node back."""
        if moment == "start-up":
            self._scene.kill(self._any_node(), "any")
            self._scene.kill(self._starting(), moment)
        else:
            wait = {"any": self._any, "checkpoint": self._saving, "evaluation": self._evaluating}[
                moment
            ]
            node = self._any_node()
            wait()
            self._scene.kill(node, moment)
        self._scene.grow()

    def _any_node(self) -> RayNode:
        return self._scene.node_of(self._draw.randrange(2))

    def _any(self) -> None:
        time.sleep(self._draw.uniform(0, 5))

    def _saving(self) -> None:
        """Until the storage has a shard to take; its answer is held back meanwhile."""
        sending = threading.Event()

        def hear(request: str) -> None:
            if "/shard-" in request and not request.startswith(("GET", "HEAD")):
                sending.set()
                time.sleep(1)

        self._scene.lab.s3.before = hear
        assert sending.wait(120)
        self._scene.lab.s3.before = lambda request: None

    def _evaluating(self) -> None:
        due = (self._scene.run.look().step // EVALUATED + 1) * EVALUATED
        self._scene.wait(lambda run: run.step >= due, 240, f"step {due}")
        assert self._scene.run.look().evaluated < due, "the evaluation was over too soon"

    def _starting(self) -> RayNode:
        """A new node that has a worker's process, which has not begun to train."""
        groups, node = len(self._scene.run.look().groups), self._scene.add()
        wait_until(
            lambda: any("RayTrainWorker" in each for each in node.titles()),
            120,
            "a worker on the new node",
        )
        time.sleep(self._draw.uniform(0, 2))
        assert len(self._scene.run.look().groups) == groups, "it had begun"
        return node


def test_killed_nodes_cost_nothing_that_was_durable(tmp_path: Path) -> None:
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
            Killer(scene, draw).strike(moment)
            print(
                {
                    key: round(value, 1) if isinstance(value, float) else value
                    for key, value in scene.costs[-1].items()
                }
            )
        lost = list(scene.run.failures)
        last = stopped_and_resumed(scene, spec)
        assert lost and set(lost) <= {"lost_node", "no_room"}, lost
        assert len(scene.costs) >= 5 and {cost["first"] for cost in scene.costs} == {False, True}
        check_nothing_lost(scene, last, tmp_path)


def stopped_and_resumed(scene: Scene, spec: Path) -> int:
    """`ray job stop` while two nodes train; then the same run goes on for some steps. Returns its
    last step.
    """
    since = scene.run.groups[-1].time
    wait_until(
        lambda: Followed(scene.lab.home, "killed", node=1).look().sampled > since,
        60,
        "the second node's load",
    )
    asked = time.time()
    scene.job.stop()
    assert scene.job.wait(120) == "STOPPED", scene.job.log()
    print(f"stopped after {time.time() - asked:.1f} s")
    [record] = list_runs(Home(scene.lab.home))
    assert record.status == "interrupted" and record.step == scene.run.look().step, scene.job.log()
    last = record.step + 10
    words = ["train", spec, "--json", "--resume", record.run_id, "--set", f"training.steps={last}"]
    scene.job = RayJob(scene.lab.nodes, words)
    assert scene.job.wait(240) == "SUCCEEDED", scene.job.log()
    return last


def check_nothing_lost(scene: Scene, last: int, folder: Path) -> None:
    steps = list(range(1, last + 1))
    assert [loss.step for loss in scene.run.look().losses] == steps, "the journal"
    [record] = list_runs(Home(scene.lab.home))
    tracked = scene.lab.mlflow.run(record.run_id)
    assert sorted(scene.lab.mlflow.steps(tracked["info"]["run_id"], "train/loss")) == steps, (
        "MLflow"
    )
    tags = {tag["key"]: tag["value"] for tag in tracked["data"]["tags"]}
    assert tags["ditlab.failure"] == "lost_node" and len(scene.run.groups[-1].nodes) == 2
    assert tracked["info"]["status"] == "FINISHED"
    loads = {
        metric["key"]
        for metric in tracked["data"]["metrics"]
        if metric["key"].startswith("system/")
    }
    assert {name.split("/")[1] for name in loads} == {"node_0", "node_1"}

    store = CheckpointStore.at(scene.lab.storage).child(record.run_id)
    assert store.steps()[-1] == last
    for step in store.steps():
        with store.open(step, verify=True) as reader:
            assert reader.manifest.position == step * BATCH

    _, alone = train_here(
        tiny(training__steps=EARLY), folder / "alone", folder / "alone" / "checkpoints"
    )
    history = metric_history(Home(scene.lab.home).run(record.run_id))["train/loss"]
    for step, loss in zip(
        history.steps[:EARLY], history.values, strict=False
    ):  # later on, rounding makes any two differ
        assert loss == pytest.approx(alone.losses[step], rel=1e-3)
