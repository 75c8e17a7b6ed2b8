"""Ctrl-C on the command itself, with a Ray of its own: a final checkpoint, exit code 130, nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import processes_of
from support.trainings.workers import tiny


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path):
    home, spec = tmp_path / "home", tmp_path / "spec.yaml"
    spec.write_text(dump_yaml(tiny(training__steps=100_000, checkpoint__every=None).to_dict()))
    command = [sys.executable, "-m", "ditlab", "train", str(spec), "--json"]
    environment = {**os.environ, "DITLAB_HOME": str(home)}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not any('"step":10,' in journal.read_text() for journal in home.glob("train/*/journal.jsonl")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no tenth step within two minutes"
            time.sleep(0.1)
        assert len(processes_of(home)) > 3  # the command, Ray's daemons, a worker
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    result = json.loads(out.strip().splitlines()[-1])
    assert result["status"] == "interrupted" and result["step"] >= 10
    assert Path(result["checkpoint"], "manifest.json").exists()
    assert "Traceback" not in err
    assert f"--resume {result['run_id']}" in err
    deadline = time.monotonic() + 15
    while processes_of(home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(home) == []
