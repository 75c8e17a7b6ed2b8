"""Benchmarks that need neither Ray, MLflow nor DeepSpeed run where these are not installed."""

import json
from pathlib import Path

import pytest

from benchmarks.rounds import RESULTS
from benchmarks.run_all import NEEDS, TAKES_DEVICE
from benchmarks.small_sizes import SMALL
from support.python_process import run_python

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
    needed = {package for name in TAKES_DEVICE for package in NEEDS.get(name, ())}
    assert not needed & {"ray", "mlflow"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL if name not in NEEDS])
def test_it_prints_a_ratio_without_them(name, tmp_path, monkeypatch):
    figures = tmp_path / "figures"
    monkeypatch.setenv(RESULTS, str(figures))
    done = run_python("-c", RUN, FOLDER / f"{name}.py", *SMALL[name])
    assert "ratio" in done.stdout.splitlines()[-1]
    assert [json.loads(line)["ratio"] for line in figures.read_text().splitlines()]
