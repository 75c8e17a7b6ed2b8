"""The command is killed, stopped or started twice: the next one goes on in the same bits and the
same MLflow run.
"""

import signal
import subprocess

import psutil
import pytest

from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import has_step, processes_of, tracked, wait_until, worker_processes
from support.clusters.unbroken import broken, checkpoint_of
from support.command import run_process, start_process
from support.trainings.workers import same_state


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "driven.yaml"
    path.write_text(dump_yaml(broken("driven").to_dict()))
    return path


def start(spec, home, *more):
    return start_process("train", spec, "--json", *more, home=home)


def nobody_is_left(home):
    wait_until(lambda: processes_of(home) == [], 30, f"the end of {processes_of(home)}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_command_killed_again_and_again(spec, unbroken, tmp_path):
    """The next command starts while the workers of the one before still live: none of their points
    is logged twice.
    """
    for step in (1, 15, 30, 50):  # of 60
        process = start(spec, tmp_path, "--resume", "auto")
        wait_until(lambda step=step: has_step(tmp_path, "driven", step), 150, f"step {step}")
        process.kill()
        process.wait(10)
    said = run_process("train", spec, "--resume", "auto", "--json", home=tmp_path).ok()
    assert same_state(checkpoint_of(tmp_path, said.json["run_id"]), unbroken.state)
    found, _, status = tracked(tmp_path, "driven")
    assert found == unbroken.points and status == "FINISHED"
    nobody_is_left(tmp_path)


@pytest.mark.slow
def test_ctrl_c_twice_ends_a_run_whose_worker_is_stopped(spec, tmp_path):
    """The worker cannot save any more: the second Ctrl-C ends it all the same."""
    process = start(spec, tmp_path, "--set", "training.steps=100000")
    wait_until(lambda: has_step(tmp_path, "driven", 10), 150, "step 10")
    worker_processes(psutil.Process(process.pid))[0].suspend()
    process.send_signal(signal.SIGINT)
    wait_until(lambda: process.poll() is not None or _again(process), 60, "the end")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130 and "Traceback" not in err, err
    nobody_is_left(tmp_path)


def _again(process):
    process.send_signal(signal.SIGINT)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        return False
    return True
