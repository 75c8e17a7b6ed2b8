"""A job on nodes that are killed and replaced."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import Home
from ditlab.tracking.records import RunRecord, list_runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.lab import Lab
from support.clusters.nodes import RayNode
from support.clusters.ray_jobs import RayJob


@dataclass
class Scene:
    """Nodes beside the head, and a job that trains on them."""

    lab: Lab
    run: Followed
    nodes: list[RayNode]
    words: list[str | Path]
    """Arguments of the submitted command."""
    kills: list[bool] = field(default_factory=list)
    """For each node that was killed, True if it carried the first worker."""

    def __post_init__(self) -> None:
        self.job = RayJob(self.lab.nodes, self.words)

    def wait(self, condition: Callable[[Followed], bool], seconds: float, what: str) -> None:
        """Wait for a state of the run. Raises AssertionError where the job or the time ends
        before.
        """
        asked = 0.0

        def is_so() -> bool:
            nonlocal asked
            if condition(self.run.look()):
                return True
            if time.monotonic() > asked + 2:
                asked = time.monotonic()
                assert not self.job.has_ended(), f"{what}: {self.job.status()}"
            time.sleep(0.02)
            return False

        try:
            wait_until(is_so, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job.log()}") from None

    def node_of(self, place: int) -> RayNode:
        """A node that carries the run: that of its first worker, or another."""
        name = self.run.look().groups[-1].nodes[place]
        return next(node for node in self.nodes if node.id.startswith(name))

    def kill(self, node: RayNode, left: int = 1) -> None:
        """Returns when `left` workers have gone on for a step."""
        before = self.run.look().step
        groups = len(self.run.groups)
        self.kills.append(node is self.node_of(0))
        node.kill()
        self.nodes.remove(node)
        self.wait(
            lambda run: len(run.groups) > groups and run.groups[-1].workers == left,
            240,
            f"{left} going on",
        )
        begun = self.run.groups[-1].time
        self.wait(lambda run: run.step > before and run.losses[-1].time > begun, 120, "a new step")

    def add(self) -> RayNode:
        self.nodes.append(self.lab.nodes.add_node())
        return self.nodes[-1]

    def grow(self, workers: int = 2) -> None:
        """Adds a node. Returns when as many workers have gone on for a step."""
        groups = len(self.run.look().groups)
        self.add()
        self.wait(
            lambda run: len(run.groups) > groups and run.groups[-1].workers == workers,
            240,
            "a larger group",
        )
        begun = self.run.groups[-1].time
        self.wait(lambda run: run.losses[-1].time > begun, 120, "a step of the larger group")

    def finished(self, last: int) -> RunRecord:
        """The only run of the home: each step to the last is there once, in its journal and in
        MLflow.
        """
        steps = list(range(1, last + 1))
        assert [loss.step for loss in self.run.look().losses] == steps, "the journal"
        [record] = list_runs(Home(self.lab.home))
        assert (record.status, record.step) == ("finished", last)
        tracked = self.lab.mlflow.run(record.run_id)["info"]
        assert tracked["status"] == "FINISHED"
        assert sorted(self.lab.mlflow.steps(tracked["run_id"], "train/loss")) == steps, "MLflow"
        return record


def check_checkpoints(store: CheckpointStore, last: int, batch: int) -> None:
    """Every checkpoint is whole, and the newest one is that of the last step."""
    for step in store.steps():
        with store.open(step, verify=True) as reader:
            assert reader.manifest.position == step * batch
    assert store.last_step() == last
