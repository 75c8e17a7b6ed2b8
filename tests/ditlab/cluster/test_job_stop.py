"""`ray job stop` of a job on two nodes, whatever it is doing: it ends in time, has saved, and the
same line goes on.
"""

import json

import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.kills import Scene
from support.clusters.lab import lab
from support.trainings.workers import newest, tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS, EVALUATED, IN_TIME = 900, 300, 90.0


def test_a_stopped_job_has_saved_and_goes_on(tmp_path):
    with lab(tmp_path) as ours:
        ours.nodes.start_head(num_cpus=0)
        nodes = [ours.nodes.add_node(), ours.nodes.add_node()]
        experiment = tiny(
            name="stopped",
            training__steps=STEPS,
            resources={"workers": 2, "cpus_per_worker": 1},
            checkpoint={"every": None},  # what there is, the stop has written
            evaluation={"every": EVALUATED, "samples": 64, "limit": 256},
            sampling={"steps": 100},
            tracking={"budget": None, "system_metrics": False},
        )
        spec = tmp_path / "spec.yaml"
        spec.write_text(dump_yaml(experiment.to_dict()))
        run, words = Followed(ours.home, "stopped"), ["train", spec, "--json", "--resume", "auto"]

        def stop(scene):
            scene.job.stop()
            assert scene.job.wait(IN_TIME) == "STOPPED", scene.job.log()
            [record] = list_runs(Home(ours.home))
            assert record.status == "interrupted", scene.job.log()
            saved = 0
            if run.look().step:
                saved = newest(Home(ours.home).run(record.run_id).checkpoints).manifest.step
            assert saved == record.step == run.step, scene.job.log()

        starting = Scene(ours, run, nodes, words)
        wait_until(
            lambda: any("RayTrainWorker" in each for node in nodes for each in node.titles()),
            240,
            "a worker",
        )
        stop(starting)

        for step in (20, EVALUATED):
            scene = Scene(ours, run, nodes, words)
            scene.wait(lambda run, step=step: run.step >= step, 300, f"step {step}")
            assert run.evaluated < EVALUATED, "the evaluation was over too soon"
            stop(scene)

        last = Scene(ours, run, nodes, words)
        assert last.job.wait(400) == "SUCCEEDED", last.job.log()
        record = last.finished(STEPS)
        assert json.loads(last.job.log().splitlines()[-1])["run_id"] == record.run_id
