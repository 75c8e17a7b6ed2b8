"""Signals to a command with a Ray of its own, and Ray's own death: checkpoint, exit code, words,
nobody left behind.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ditlab.home import Home
from ditlab.runs.locks import running_state
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.records import list_runs
from support.clusters.faults import has_step, processes_of, wait_until
from support.command import start_process
from support.trainings.workers import tiny

pytestmark = pytest.mark.slow


@contextmanager
def training(folder):
    """A training at its tenth step or later, with a checkpoint every fifth."""
    home, spec = folder / "home", folder / "spec.yaml"
    spec.write_text(
        dump_yaml(tiny(training__steps=100_000, checkpoint={"every": 5, "keep": 2}).to_dict())
    )
    process = start_process("train", spec, "--json", home=home)
    try:
        wait_until(lambda: has_step(home, "tiny", 10) or process.poll() is not None, 120, "step 10")
        assert process.poll() is None, process.communicate()
        assert len(processes_of(home)) > 3  # the command, Ray's daemons, a worker
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: processes_of(home) == [], 15, "the end of every process")


@pytest.mark.parametrize("way", ["Ctrl-C", "timeout", "scancel", "USR1@300"])
def test_a_signal_leaves_a_checkpoint_and_no_process(way, tmp_path):
    with training(tmp_path) as process:
        if way == "Ctrl-C":
            # as a terminal does: to the whole foreground group
            os.killpg(process.pid, signal.SIGINT)
        elif way == "timeout":
            process.terminate()
            os.killpg(process.pid, signal.SIGTERM)
        else:  # Slurm: to all of a step
            number = signal.SIGUSR1 if way == "USR1@300" else signal.SIGTERM
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    result = json.loads(out.strip().splitlines()[-1])
    assert result["status"] == "interrupted" and result["step"] >= 10
    assert Path(result["checkpoint"], "manifest.json").exists()
    assert result["checkpoint"].endswith(f"{result['step']:08}")  # it was saved on the signal
    assert "Traceback" not in err and f"--resume {result['run_id']}" in err


@pytest.mark.parametrize("signalled", [True, False])
def test_ray_that_dies_first_is_told_within_seconds(signalled, tmp_path):
    with training(tmp_path) as process:
        [head] = [
            each for each in psutil.Process(process.pid).children() if each.name() == "gcs_server"
        ]
        head.kill()
        if signalled:
            process.terminate()
        begun = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if signalled else 1), out + err
    # mostly MLflow's import; the sentence itself comes within 5 s
    assert time.monotonic() - begun < 20
    assert "Ray on this machine has died (its process gcs_server ended with code -9)" in err
    assert "Check failed" not in err and "Traceback" not in err


def test_a_launcher_killed_leaves_no_ray_and_its_run_is_lost(tmp_path):
    with training(tmp_path) as process:
        process.kill()
        process.wait(10)
        home = Home(tmp_path / "home")
        [record] = list_runs(home)
        begun = time.monotonic()
        state = running_state(home.run(record.run_id), record)
        assert time.monotonic() - begun < 5
    assert record.status == "running" and state.state == "lost"
    assert state.text.startswith("at step ") and ", checkpoint " in state.text


@pytest.mark.parametrize("place", ["within", "after"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_heard_within_a_ray_of_our_own_and_after_it(number, place):
    """Ray's C++ part replaces the handler of SIGTERM as it starts, and removes any as it ends."""
    raised = f"os.kill(os.getpid(), {int(number)})"
    code = (
        "import os\nfrom ditlab.cluster.session import ray_session\nfrom ditlab.runs.signals "
        "import command_signals\ntry:\n    with command_signals():\n        with "
        f"ray_session(None, 1):\n            {raised if place == 'within' else 'pass'}\n"
        f"        {raised}\nexcept KeyboardInterrupt:\n    print('heard')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
