"""Without Ray: evaluator and trainer are killed, and every point comes once, as of a run that
nothing interrupts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import psutil
import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.history import JournalFacts, metric_history
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import list_runs
from support.clusters.faults import wait_until
from support.databases import seed
from support.trainings.workers import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS, EVERY = 400, 40


def evaluators(of):
    found = []
    for each in of.children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "ditlab.runs.evaluator_process" in each.cmdline():
                found.append(each)
    return found


def evaluators_or_end(of):
    return of.poll() is not None or bool(evaluators(of))


def test_killed_five_times_and_twice(tmp_path, mlflow_template):
    home = seed(tmp_path / "home", mlflow_template)
    evaluation = {"every": EVERY, "samples": 4, "limit": 64, "mode": "async"}
    rare = {"every": 20, "keep": 1}
    experiment = tiny(
        training__steps=STEPS, checkpoint=rare, evaluation=evaluation, sampling={"steps": 500}
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_yaml(experiment.to_dict()))
    environment, killed = {**os.environ, "DITLAB_HOME": str(home)}, 0

    def start():
        options = ["--local", "--resume", "auto", "--json"]
        command = [sys.executable, "-m", "ditlab", "train", str(spec), *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return psutil.Popen(command, env=environment, **pipes)

    # seconds of life: in imports, at the checkpoint, in the evaluation
    ages = iter([0.0, 0.6, 1.2, 1.8, 2.4])
    # evaluators that are killed before the trainer is, which goes on to its end at last
    for kills in (2, 4, 5):
        trainer = start()
        while killed < kills:
            wait_until(partial(evaluators_or_end, trainer), 200, "an evaluator")
            assert trainer.poll() is None, "an evaluator was faster than its kill"
            time.sleep(next(ages, 0.0))
            for each in evaluators(trainer):
                each.kill()
                each.wait()
                killed += 1
        if kills < 5:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
    out, _ = trainer.communicate(timeout=400)
    assert trainer.returncode == 0 and killed == 5
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["step"]) == ("finished", STEPS)
    (record,) = list_runs(Home(home))
    folder = Home(home).run(record.run_id)
    content = read_content(folder.journal)
    tags = JournalFacts.of(content).tags
    history = metric_history(folder)["eval/velocity"]
    steps = history.steps.tolist()
    text = tags.get("ditlab.evaluations_skipped", "")
    passed = [int(step) for step in filter(None, text.split(", "))]
    assert sorted(steps) == sorted(set(steps)) and steps[-1] == STEPS
    assert sorted([*steps, *passed]) == list(range(0, STEPS + 1, EVERY))
    assert len(list(folder.checkpoints.glob("step-*"))) <= 2  # keep=1, and one that waited
    assert not list(folder.evaluator.glob("*.json"))
