"""docs/slurm/ditlab.sbatch: its text everywhere, and a run of it where there is a Slurm."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ditlab.spec.yaml_text import dump_yaml
from support.trainings.workers import tiny

SCRIPT = Path(__file__).parents[1] / "docs" / "slurm" / "ditlab.sbatch"
TEXT = SCRIPT.read_text()


def told(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_bash_can_read_it():
    done = told("bash", "-n", SCRIPT)
    assert done.returncode == 0, done.stderr


def test_it_stops_at_the_first_mistake(monkeypatch):
    assert "\nset -euo pipefail\n" in TEXT
    monkeypatch.delenv("DITLAB_HOME", raising=False)
    done = told("bash", SCRIPT)
    assert done.returncode
    assert "DITLAB_HOME: set it to a folder that all machines share" in done.stderr


def test_slurm_gives_time_for_a_checkpoint_and_takes_the_job_back():
    options = dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=?(.*)$", TEXT))
    assert options["signal"] == "B:TERM@300" and "requeue" in options
    assert "--resume auto" in TEXT and 'scontrol requeue "$SLURM_JOB_ID"' in TEXT


def test_a_signal_of_any_kind_is_passed_on_and_leaves_ray_alone():
    assert "kill -TERM $run 2> /dev/null || true' TERM INT USR1 USR2 XCPU" in TEXT
    assert TEXT.index('trap "" USR1 USR2 XCPU') < TEXT.index("exec ray start")


def test_the_token_is_in_no_argument():
    assert not re.search(r"RAY_AUTH_TOKEN=|--token", TEXT)
    assert TEXT.index("umask 077") < TEXT.index("openssl rand -hex 32 >")
    assert 'rm -f "$secret"' in TEXT


def has_slurm():
    if not shutil.which("sbatch"):
        return False
    num = told("sinfo", "-h", "-o", "%D").stdout.strip()
    return num.isdigit() and int(num) >= 2


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not has_slurm(), reason="no Slurm with two nodes here (sbatch, sinfo)")
def test_a_run_on_two_nodes(tmp_path, monkeypatch):
    spec, home = tmp_path / "tiny.yaml", tmp_path / "home"
    spec.write_text(dump_yaml(tiny(name="slurm", resources__workers=2).to_dict()))
    venv = Path(shutil.which("ditlab") or "").parents[1]
    monkeypatch.setenv("DITLAB_HOME", str(home))
    monkeypatch.setenv("DITLAB_VENV", str(venv))
    small = f"--cpus-per-task=1 --gpus-per-node=0 --time=10 --requeue --chdir={tmp_path}"
    sent = told("sbatch", "--parsable", *small.split(), SCRIPT, spec)
    assert sent.returncode == 0, sent.stderr
    job = sent.stdout.strip()
    log_file = tmp_path / f"ditlab-{job}.log"
    deadline = time.monotonic() + 300
    try:
        while told("squeue", "-h", "-j", job).stdout.strip():
            assert time.monotonic() < deadline, log_file.read_text()
            time.sleep(2)
    finally:
        told("scancel", job)
    log = log_file.read_text()
    assert "finished: 6 steps" in log, log
    assert not list(home.glob(".ray-token-*"))
