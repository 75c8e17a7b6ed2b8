"""Every benchmark still runs, on a size that measures nothing: here those that need packages."""

from pathlib import Path

import pytest

from benchmarks.run_all import NEEDS
from benchmarks.small_sizes import SMALL
from support.chromium import find_chromium
from support.python_process import run_python

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_none_is_forgotten():
    found = {
        f"{path.parent.name}/{path.stem}"
        for path in FOLDER.glob("*/*.py")
        if path.parent.name != "plain"
    }
    assert found == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_it_prints_a_ratio(name):
    if name == "tracking/long_run_in_mlflow" and find_chromium() is None:
        pytest.skip("no Chromium is installed")
    done = run_python(FOLDER / f"{name}.py", *SMALL[name])
    assert "ratio" in done.stdout.splitlines()[-1]
