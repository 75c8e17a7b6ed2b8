"""The head of a real cluster is killed, and the job's driver with it: on a new head the same line
goes on with the same run, from shared storage, in the same MLflow run."""

import pytest

from ditlab.home import Home
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.files import load_experiment
from ditlab.tracking.records import list_runs
from support.clusters.followed import Followed
from support.clusters.kills import Scene, check_checkpoints
from support.clusters.lab import lab
from support.clusters.nodes import CHECKOUT, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SPEC, NAME, STEPS, BATCH = "experiments/digits/dit.yaml", "digits-dit", 200, 128


def line(ours, storage):
    """Arguments of the submitted command, the same each time."""
    settings = {
        "resources.workers": 2,
        "training.steps": STEPS,
        "checkpoint.every": 20,
        "evaluation.every": "null",
        "tracking.budget": "null",
        "tracking.system_metrics": "false",
    }
    if storage == "s3":
        settings["checkpoint.storage"] = ours.storage
    words = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
    return ["train", CHECKOUT / SPEC, "--resume", "auto", "--json", *words]


@pytest.mark.parametrize(("storage", "outlives"), [("s3", True), ("folder", False)])
def test_the_same_line_goes_on_under_a_new_head(tmp_path, storage, outlives):
    """Workers of the old cluster that live on for a while are waited for."""
    with lab(tmp_path) as ours:
        head = ours.nodes.start_head(num_cpus=0)
        old = [ours.nodes.add_node(), ours.nodes.add_node()]
        words, run = line(ours, storage), Followed(ours.home, NAME)
        scene = Scene(ours, run, old, words)
        scene.wait(lambda run: run.step > 50, 300, "step 50")
        [before] = list_runs(Home(ours.home))
        head.kill()
        if outlives:  # until the new job has met them
            for node in old:
                node.freeze()
        else:
            wait_for(
                lambda: not any(node.is_alive() for node in old), 90, "the end of the old nodes"
            )
        ours.nodes.start_head(num_cpus=0)
        scene = Scene(ours, run, [ours.nodes.add_node(), ours.nodes.add_node()], words)
        if outlives:
            wait_for(
                lambda: "a worker of an earlier launch still writes" in scene.job.log(),
                300,
                "the new workers",
            )
            for node in old:
                node.thaw()
        assert scene.job.wait(500) == "SUCCEEDED", scene.job.log()

        assert scene.finished(STEPS).run_id == before.run_id and len(run.groups) >= 2
        folder = Home(ours.home).run(before.run_id)
        store = checkpoint_store(folder, load_experiment(folder.spec).checkpoint.storage)
        assert store.location.startswith("s3://") == (storage == "s3")
        check_checkpoints(store, STEPS, BATCH)
