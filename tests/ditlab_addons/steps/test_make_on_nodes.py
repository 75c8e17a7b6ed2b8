"""A graph as a job on two nodes: independent steps overlap, a node is lost, the results are the
same.
"""

import time

import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from ditlab_addons.steps.tasks import Runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.lab import lab
from support.clusters.ray_jobs import RayJob
from support.command import run_process
from support.trainings.workers import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 600
GRAPH = {
    "name": "nodes",
    "steps": {
        "one": {"train": "small.yaml", "set": {"name": "one"}},
        "two": {"train": "small.yaml", "set": {"name": "two", "seed": 1}},
        "after": {"train": "small.yaml", "weights-of": "one", "set": {"training.steps": 4}},
        "scores": {"evaluate": ["one", "two", "after"]},
    },
}


def weights(home) -> list[str]:
    runs = Runs(Home(home))
    return sorted(runs.weights(each.run_id)[1] for each in list_runs(Home(home)))


def test_steps_overlap_and_survive_the_loss_of_a_node(tmp_path):
    spec = tiny(
        training__steps=STEPS,
        checkpoint__every=50,
        evaluation={"every": STEPS, "samples": 0},
        resources={"cpus_per_worker": 1},
        tracking={"budget": None, "system_metrics": False},
    )
    (tmp_path / "small.yaml").write_text(dump_yaml(spec.to_dict()))
    graph = tmp_path / "study.yaml"
    graph.write_text(dump_yaml(GRAPH))
    with lab(tmp_path) as ours:
        ours.nodes.start_head(num_cpus=0)
        nodes = [ours.nodes.add_node(), ours.nodes.add_node()]
        job = RayJob(ours.nodes, ["make", graph, "--json"])
        runs = [Followed(ours.home, "one"), Followed(ours.home, "two")]

        def training():
            time.sleep(0.5)
            assert not job.has_ended(), job.log()
            return [one for one in runs if 0 < one.look().step < STEPS]

        wait_until(lambda: len(training()) == 2, 300, "two steps at once")
        places = [one.groups[-1].nodes[0] for one in runs]
        assert len({*places}) == 2
        next(node for node in nodes if node.id.startswith(places[0])).kill()
        ours.nodes.add_node()
        assert job.wait(600) == "SUCCEEDED", job.log()
        alone = run_process("make", graph, "--local", "--json", home=tmp_path / "alone")
        assert {each["status"] for each in alone.ok().json["steps"]} == {"done"}
        assert weights(ours.home) == weights(tmp_path / "alone")
