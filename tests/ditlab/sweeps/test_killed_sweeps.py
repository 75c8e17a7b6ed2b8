"""Sweeps that are killed at drawn moments, and resumed each time, decide as unbroken ones."""

import json
import os
import random
import signal
import subprocess

import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.folder import SweepFolder, read_takeovers
from ditlab.tracking.records import list_runs
from support.clusters.faults import processes_of, wait_until
from support.command import run_process
from support.sweeps import small_sweep, start_tune

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

RATES = {"optimizer.lr": {"kind": "loguniform", "low": 1e-5, "high": 1e-1}}
STEPS = {"training.steps": 120, "evaluation.every": 20, "checkpoint.every": 30}
DRAWN = {"search": {"kind": "random"}, "space": RATES, "trials": 6, "concurrent": 1, "fixed": STEPS}
KINDS = {
    "asha": {**DRAWN, "scheduler": {"kind": "asha", "grace": 20, "reduction": 2}},
    "median": {**DRAWN, "scheduler": {"kind": "median", "grace": 20, "min_trials": 2}},
    "pbt": {**DRAWN, "trials": 4, "concurrent": None, "scheduler": {"kind": "pbt", "interval": 40}},
    "optuna": {**DRAWN, "search": {"kind": "optuna", "startup": 2}},
    "race": {
        "space": {"optimizer.lr": {"kind": "grid", "values": [1e-6, 3e-3]}},
        "scheduler": {"kind": "race", "grace": 40, "reduction": 2},
        "seeds": {"min": 3, "max": 4},
        "concurrent": 1,
        "fixed": STEPS,
    },
}


def log_of(home):
    """Standard error of every session."""
    return home.with_suffix(".log")


def journaled(home):
    """Bytes of the journals of all trials: the moments of a sweep."""
    return sum(path.stat().st_size for path in (home / "train").glob("*/journal.jsonl"))


def sweep_ids(home):
    if not (home / "train").exists():
        return []
    return [record.run_id for record in list_runs(Home(home)) if record.trials]


def decisions(home, said):
    """Decisions of a sweep, and its results, by the numbers of its trials."""
    (sweep_id,) = sweep_ids(home)
    planned = SweepFolder(Home(home).run(sweep_id)).planned_trials()
    numbers = {trial.run_id: trial.number for trial in planned}
    found = [said.get("verdict")]
    for trial in sorted(said["trials"], key=lambda trial: trial["number"]):
        taken = [
            (takeover.step, numbers[takeover.donor], takeover.donor_step, takeover.values)
            for takeover in read_takeovers(Home(home).run(trial["run_id"]))
        ]
        facts = ("number", "values", "seed", "status", "step", "metrics")
        found.append([taken, *(trial.get(name) for name in facts)])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_that_was_killed_decides_as_an_unbroken_one(kind, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(dump_yaml(small_sweep(**KINDS[kind])))
    whole = tmp_path / "unbroken"
    unbroken = run_process("tune", path, "--json", home=whole, timeout=900, OMP_NUM_THREADS="1")
    assert unbroken.code == 0, unbroken.err
    size = journaled(whole)

    home = tmp_path / "home"
    draws = random.Random(kind)
    moments = sorted(draws.uniform(0.02, 0.95) * size for _ in range(4))
    for moment in moments:
        words = ["--resume", *sweep_ids(home)] if sweep_ids(home) else [path]
        with log_of(home).open("ab") as log:
            process = start_tune(home, *words, stdout=subprocess.DEVNULL, stderr=log)
        # a session adds records of its own, so a moment may be over as it begins
        least = max(moment, journaled(home) + 1)

        def is_reached(process=process, least=least):
            return process.poll() is not None or journaled(home) >= least

        wait_until(is_reached, 600, f"{least:.0f} bytes of journals")
        assert process.poll() is None, log_of(home).read_text()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: processes_of(home) == [], 120, "the end of the killed session")
    said = run_process(
        "tune", "--resume", *sweep_ids(home), "--json", home=home, timeout=900, OMP_NUM_THREADS="1"
    )
    assert said.code == 0, said.err
    assert json.dumps(decisions(home, said.json)) == json.dumps(decisions(whole, unbroken.json))
    wait_until(lambda: processes_of(home) == [], 60, "the end of all processes")
