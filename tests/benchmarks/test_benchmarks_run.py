"""Every benchmark still runs, on a size that measures nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.chromium import find_chromium

FOLDER = Path(__file__).parent
SMALL = {
    "data/import_rate": ["--rounds", "1", "--seconds", "1"],
    "data/large_store": ["--rows", "2000000", "--rounds", "1"],
    "data/loader_throughput": [],
    "data/order_mixing": ["--blocks", "128", "--block-rows", "16", "--batch", "64"],
    "data/streaming": ["--gigabytes", "0.3", "--step", "0.1", "--cache", "0.3"],
    "runs/checkpoint_stall": [],
    "runs/recovery_time": ["--rounds", "1"],
    "runs/start_up": ["--rounds", "1"],
    "runs/sweep_cost": ["--trials", "2", "--fresh", "2"],
    "sampling/dlm_block_sampling": ["--quick", "--rounds", "2"],
    "sampling/pixelhdm_guidance": ["--quick", "--rounds", "2"],
    "step/caption_padding": ["--quick", "--rounds", "2"],
    "step/dlm_loss": ["--quick", "--rounds", "2"],
    "step/phase_cost": ["--rounds", "2", "--block", "1"],
    "step/pixelhdm_step": ["--quick", "--rounds", "2", "--batch", "2"],
    "step/planned_step": ["--quick"],
    "step/region_step": ["--batch", "1", "--rounds", "2", "--set", "model={num_regions: 60, depth: 2, width: 96}"],
    "step/step_time": ["--rounds", "2", "--block", "1"],
    "tracking/journal_cost": ["--seconds", "2"],
    "tracking/long_journal": ["--steps", "30000", "--runs", "50", "--rounds", "1"],
    "tracking/long_run_in_mlflow": ["--steps", "2000", "--rounds", "1"],
    "tracking/tracking_outage": ["--rounds", "1", "--block", "3"],
}


def test_none_is_forgotten():
    found = {f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.py") if path.parent.name != "plain"}
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
