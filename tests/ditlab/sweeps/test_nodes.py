"""A sweep as a job on several nodes: trials run on different ones, a node is lost, the job is
stopped and resumed.
"""

import json
import time

import pytest

from ditlab.home import Home
from ditlab.tracking.records import list_runs
from support.clusters.faults import wait_until
from support.clusters.followed import Followed
from support.clusters.lab import lab
from support.clusters.ray_jobs import RayJob
from support.sweeps import written_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS, TRIALS = 600, 4
FIXED = {
    "training.steps": STEPS,
    "evaluation.every": 200,
    "evaluation.samples": 0,
    "checkpoint.every": 50,
    "tracking.budget": None,
    "tracking.system_metrics": False,
}


class Trials:
    """Trials of the only sweep in a home."""

    def __init__(self, ours):
        self._home = Home(ours.home)
        self._followed = {}

    def sweep(self):
        return next(record for record in list_runs(self._home) if record.trials)

    def records(self):
        return [record for record in list_runs(self._home) if record.trial >= 0]

    def all(self):
        """The journal of each trial that has started, by number."""
        for record in self.records():
            journal = Followed(self._home.root, record.name, number=record.trial)
            self._followed.setdefault(record.run_id, journal)
        return {one.number: one.look() for one in self._followed.values()}

    def training(self):
        return [one for one in self.all().values() if 0 < one.step < STEPS]

    def statuses(self):
        return {record.trial: record.status for record in self.records()}


def test_trials_survive_the_loss_of_a_node_and_a_stop(tmp_path):
    with lab(tmp_path) as ours:
        ours.nodes.start_head(num_cpus=0)
        nodes = [ours.nodes.add_node(), ours.nodes.add_node()]
        space = {"optimizer.lr": {"kind": "grid", "values": [1e-2, 3e-3, 1e-3, 3e-4]}}
        spec = written_sweep(
            tmp_path, space, search={"kind": "grid"}, trials=None, fixed=FIXED, concurrent=2
        )
        job, trials = RayJob(ours.nodes, ["tune", spec, "--json"]), Trials(ours)

        def going(job, what, is_so):
            def seen():
                time.sleep(0.5)
                assert not job.has_ended(), job.log()
                return bool(is_so())

            wait_until(seen, 300, what)

        going(job, "two trials at once", lambda: len(trials.training()) == 2)
        places = [one.groups[-1].nodes for one in trials.training()]
        assert len({name for names in places for name in names}) == 2, places

        lost = trials.training()[0]
        steps, groups = lost.step, len(lost.groups)
        next(node for node in nodes if node.id.startswith(lost.groups[-1].nodes[0])).kill()
        ours.nodes.add_node()
        going(
            job,
            "the lost trial on another node",
            lambda: len(lost.look().groups) > groups and lost.step > steps,
        )
        # its leader may have been lost, too
        assert "lost_node" in lost.failures or not lost.failures, lost.failures

        job.stop()
        assert job.wait(180) == "STOPPED", job.log()
        assert "running" not in trials.statuses().values(), job.log()
        sweep = trials.sweep()
        assert sweep.status == "interrupted"

        job = RayJob(ours.nodes, ["tune", "--resume", sweep.run_id, "--json"])
        assert job.wait(500) == "SUCCEEDED", job.log()
        assert len(json.loads(job.log().splitlines()[-1])["trials"]) == TRIALS
        check(ours, trials, job.log())


def check(ours, trials, log):
    """Check that every trial is whole and tracked below one parent, and that the report exists."""
    assert trials.statuses() == dict.fromkeys(range(TRIALS), "finished")
    sweep, steps = trials.sweep(), list(range(1, STEPS + 1))
    parent = ours.mlflow.run(sweep.run_id)["info"]["run_id"]
    carried = set()
    for number, run in trials.all().items():
        assert [loss.step for loss in run.losses] == steps, number
        (run_id,) = (record.run_id for record in trials.records() if record.trial == number)
        tracked = ours.mlflow.run(run_id)
        tags = {tag["key"]: tag["value"] for tag in tracked["data"]["tags"]}
        assert (tags["mlflow.parentRunId"], tags["ditlab.trial"]) == (parent, str(number))
        assert sorted(ours.mlflow.steps(tracked["info"]["run_id"], "train/loss")) == steps, log
        carried |= {group.nodes for group in run.groups}
    assert len(carried) >= 2
    report = Home(ours.home).run(sweep.run_id).path / "report"
    assert {"report.html", "best.yaml"} <= {path.name for path in report.iterdir()}
