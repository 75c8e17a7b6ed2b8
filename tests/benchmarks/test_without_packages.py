"""Benchmarks that need neither Ray, MLflow nor DeepSpeed run where these are not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rounds import RESULTS
from benchmarks.run_all import NEEDS, TAKES_DEVICE
from benchmarks.small_sizes import SMALL

FOLDER = Path(__file__).parents[2] / "benchmarks"
BLOCKED = ("ray", "mlflow", "deepspeed")
RUN = f"""
import runpy, sys
for name in {BLOCKED}:
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_those_that_take_a_device_need_neither_ray_nor_mlflow():
    assert not {package for name in TAKES_DEVICE for package in NEEDS.get(name, ())} & {
        "ray",
        "mlflow",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL if name not in NEEDS])
def test_it_runs_without_them(name, tmp_path):
    command = [sys.executable, "-c", RUN, str(FOLDER / f"{name}.py"), *SMALL[name]]
    environment = os.environ | {RESULTS: str(tmp_path / "figures")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["ratio"] for line in (tmp_path / "figures").read_text().splitlines()]
