"""Start-up on a store of two million rows, beside one of a tenth of them:
`benchmarks/data/large_store.py`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "data" / "large_store.py"


@pytest.mark.slow
def test_start_up_does_not_grow_with_the_rows():
    """Ten times the rows may cost a tenth more, and what a busy machine adds to a measurement of
    0.1 s.
    """
    command = [sys.executable, SCRIPT, "--rows", "2000000", "--rounds", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    all_rows, tenth = json.loads(line).values()
    assert all_rows["processor seconds"] < 1 and all_rows["memory, MB"] < 200
    assert all_rows["processor seconds"] < 1.1 * tenth["processor seconds"] + 0.05
    assert all_rows["own memory, MB"] < 1.1 * tenth["own memory, MB"] + 5
