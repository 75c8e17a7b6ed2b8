"""Sweeps in processes of their own that are killed or interrupted, and resumed."""

import json
import signal
import subprocess
import time

import pytest

from ditlab.home import Home
from ditlab.spec.yaml_text import dump_yaml
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import list_runs
from support.clusters.faults import processes_of, wait_until
from support.clusters.unbroken import checkpoint_of
from support.command import run_process
from support.sweeps import LR, small_sweep, start_tune, tracked_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def written(folder, **fields):
    path = folder / "sweep.yaml"
    path.write_text(dump_yaml(small_sweep(**fields)))
    return path


def trial_records(home):
    """Records of the trials that have started."""
    records = list_runs(Home(home)) if (home / "train").exists() else []
    return [record for record in records if record.trial >= 0]


PIPED = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
RATES = {
    "random": {"search": {"kind": "random"}, "trials": 5, "space": LR},
    "grid": {"space": {"optimizer.lr": {"kind": "grid", "values": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}}},
}


@pytest.mark.parametrize("search", RATES)
def test_killed_sweep_is_resumed_with_the_same_trials(search, tmp_path):
    home = tmp_path / "home"
    fixed = {"training.steps": 40, "evaluation.every": 20}
    path = written(tmp_path, concurrent=1, fixed=fixed, **RATES[search])
    process = start_tune(home, path, **PIPED)

    def num_finished():
        return sum(record.status == "finished" for record in trial_records(home))

    wait_until(lambda: process.poll() is not None or num_finished() >= 2, 200, "two trials")
    process.kill()
    process.wait(10)
    (sweep,) = [record for record in list_runs(Home(home)) if record.trials]
    journals = {
        record.run_id: Home(home).run(record.run_id).journal.read_bytes()
        for record in trial_records(home)
        if record.status == "finished"
    }
    said = run_process("tune", "--resume", sweep.run_id, "--json", home=home)
    assert said.code == 0, said.err
    trials = {trial["number"]: trial for trial in said.json["trials"]}
    assert sorted(trials) == [0, 1, 2, 3, 4]
    assert {trial["status"] for trial in trials.values()} == {"finished"}
    for run_id, journal in journals.items():  # ended trials are untouched
        assert Home(home).run(run_id).journal.read_bytes() == journal
    for trial in trials.values():  # no step twice, none left out
        series = metric_history(Home(home).run(trial["run_id"]))["train/loss"]
        assert series.steps.tolist() == list(range(1, 41))
    assert sorted(tracked_runs(home, sweep.run_id)[1]) == [0, 1, 2, 3, 4]
    unbroken = run_process("tune", path, "--json", home=tmp_path / "unbroken")
    for trial in unbroken.json["trials"]:
        for part in ("values", "metrics"):
            assert trial[part] == trials[trial["number"]][part]
    wait_until(lambda: processes_of(home) == [], 30, "the end of all processes")


def test_ctrl_c_saves_checkpoints_from_which_trials_are_resumed(tmp_path):
    home = tmp_path / "home"
    path = written(tmp_path, fixed={"training.steps": 1500, "evaluation.every": 500}, concurrent=2)
    process = start_tune(home, path, **PIPED)

    def has_reached_step_20():
        journals = [Home(home).run(record.run_id).journal for record in trial_records(home)]
        return any(journal.exists() and '"step":20,' in journal.read_text() for journal in journals)

    wait_until(has_reached_step_20, 200, "step 20")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert time.monotonic() - start < 60 and "Traceback" not in err
    result = json.loads(out.splitlines()[-1])
    assert result["status"] == "interrupted" and f"--resume {result['run_id']}" in err
    for record in trial_records(home):
        assert record.status == "interrupted"
        assert checkpoint_of(home, record.run_id).manifest.step == record.step
    wait_until(lambda: processes_of(home) == [], 30, "the end of all processes")
    said = run_process("tune", "--resume", result["run_id"], "--json", home=home)
    assert said.code == 0 and len(said.json["trials"]) == 2
    for trial in said.json["trials"]:
        series = metric_history(Home(home).run(trial["run_id"]))["train/loss"]
        assert trial["status"] == "finished" and series.steps.tolist() == list(range(1, 1501))
