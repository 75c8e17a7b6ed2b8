"""Every benchmark still runs, on a size that measures nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.small_sizes import SMALL
from support.chromium import find_chromium

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_none_is_forgotten():
    found = {
        f"{path.parent.name}/{path.stem}"
        for path in FOLDER.glob("*/*.py")
        if path.parent.name != "plain"
    }
    assert found == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_it_prints_a_ratio(name):
    if name == "tracking/long_run_in_mlflow" and find_chromium() is None:
        pytest.skip("no Chromium is installed")
    command = [sys.executable, FOLDER / f"{name}.py", *SMALL[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout.splitlines()[-1]
