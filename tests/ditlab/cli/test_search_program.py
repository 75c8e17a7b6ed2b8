"""A program that knows nothing but `--json` searches within a budget, and is stopped by it."""

import json
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.tracking.index import DeviceHours
from support.command import run_inside
from support.python_process import run_python

PROGRAM = Path(__file__).with_name("search_program.py")
LIST = ("runs", "--num", "1000", "--json")


def device_seconds(home):
    """Core seconds of each run of a home."""
    return [3600 * hours["core"] for hours in DeviceHours(Home(home)).by_run().values()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_program_searches_until_the_budget_refuses_the_next_run(spec, home, monkeypatch):
    text = spec.read_text().replace("steps: 4}", "steps: 120}", 1).replace("every: 2", "every: 60")
    spec.write_text(f"{text}resources: {{cpus_per_worker: 1}}\n")
    # makes MLflow's database, too, from a copy
    run_inside("train", spec, "--local", "--json", home=home).ok()
    (first,) = device_seconds(home)
    budget = max(12.0, round(3 * first, 1))  # a few runs, whatever the speed of the machine
    monkeypatch.setenv("DITLAB_BUDGET", f"{budget}s")
    found = json.loads(run_python(PROGRAM, spec, timeout=880).stdout)
    refused = found["refused"]
    assert (refused["kind"], refused["exit_code"]) == ("budget", 2)
    assert f"DITLAB_BUDGET={budget}s is used up: runs under {home} have taken" in refused["message"]

    listed, seconds = run_inside(*LIST, home=home).json, device_seconds(home)
    assert len(seconds) - 1 == found["runs"] > 0
    assert budget <= sum(seconds) <= budget + max(seconds)
    assert 3600 * listed["budget"]["used"]["core"] >= budget

    finished = [row for row in listed["runs"] if row["status"] == "finished"]
    values = {row["run_id"]: row["main_value"] for row in finished}
    assert found["best"] == min(values, key=values.__getitem__)
