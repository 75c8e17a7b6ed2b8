"""Every benchmark still runs, on a size that measures nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.chromium import find_chromium

SMALL = {
    "caption_padding": ["--quick", "--rounds", "2"],
    "checkpoint_stall": [],
    "dlm_block_sampling": ["--quick", "--rounds", "2"],
    "dlm_loss": ["--quick", "--rounds", "2"],
    "import_rate": ["--rounds", "1", "--seconds", "1"],
    "journal_cost": ["--seconds", "2"],
    "large_store": ["--rows", "2000000", "--rounds", "1"],
    "loader_throughput": [],
    "long_journal": ["--steps", "30000", "--runs", "50", "--rounds", "1"],
    "long_run_in_mlflow": ["--steps", "2000", "--rounds", "1"],
    "order_mixing": ["--blocks", "128", "--block-rows", "16", "--batch", "64"],
    "pixelhdm_guidance": ["--quick", "--rounds", "2"],
    "pixelhdm_step": ["--quick", "--rounds", "2", "--batch", "2"],
    "recovery_time": ["--rounds", "1"],
    "region_step": ["--batch", "1", "--rounds", "2", "--set", "model={num_regions: 60, depth: 2, width: 96}"],
    "streaming": ["--gigabytes", "0.3", "--step", "0.1", "--cache", "0.3"],
    "sweep_cost": ["--trials", "2", "--fresh", "2"],
    "step_time": ["--rounds", "2", "--block", "1"],
    "tracking_outage": ["--rounds", "1", "--block", "3"],
}


def test_none_is_forgotten():
    found = {path.stem for path in Path(__file__).parent.glob("*.py")} - {Path(__file__).stem}
    assert found == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_it_prints_a_ratio(name):
    if name == "long_run_in_mlflow" and find_chromium() is None:
        pytest.skip("no Chromium is installed")
    command = [sys.executable, Path(__file__).with_name(f"{name}.py"), *SMALL[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout.splitlines()[-1]
