"""Whole sweeps on Ray: trials are runs, schedulers act, what is killed goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mlflow
import pytest
from ditlab.runs.start import start_run

from ditlab.home import Home
from ditlab.spec.reading.loading import load_experiment
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.spec.sweep.loading import build_sweep
from ditlab.sweeps.finish import SweepResult
from ditlab.sweeps.prepare import ReadySweep, create_sweep, local_nodes, ready_sweep
from ditlab.sweeps.session import Running
from ditlab.sweeps.takeovers import exploits
from ditlab.tracking.journal.history import metric_history
from ditlab.tracking.records import list_runs, read_record
from support.command import run_process
from support.faults import processes_of, wait_until, worker_processes
from support.unbroken import checkpoint_of
from support.workers import TINY, same_state

BASE = {**TINY, "name": "base", "evaluation": {"every": 2, "samples": 0, "limit": 64}, "checkpoint": {"every": None}}


def make(**fields: Any) -> dict[str, Any]:
    return {
        "name": "swept",
        "base": BASE,
        "space": {"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-3]}},
        "search": {"kind": "grid"},
        "metric": "eval/velocity",
        **fields,
    }


def ready(sweep: dict[str, Any]) -> ReadySweep:
    found = ready_sweep(build_sweep(sweep, "test"), "test", local_nodes(), remote=False)
    create_sweep(found)
    return found


def go(sweep: dict[str, Any]) -> SweepResult:
    return Running(ready(sweep)).run()


def tracked_runs(home: Path, sweep_id: str) -> tuple[Any, dict[int, Any]]:
    """(MLflow's run of a sweep, those of its trials by number)."""
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`ditlab.run` = '{sweep_id}'")
    children = client.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    by_number = {int(child.data.tags["ditlab.trial"]): child for child in children}
    assert len(by_number) == len(children), "a trial is tracked twice"
    return parent, by_number


def test_trials_are_runs_and_failures_do_not_sink_the_sweep(ray, at_home, breaking_family):
    """Two of four fail, in workers that the others find warm; the best one, trained again alone, comes to its bits."""
    base = {**BASE, "model": {**TINY["model"], "family": "breaking"}}
    space = {
        "objective.fault.kind": {"kind": "grid", "values": ["bug", "none"]},
        "optimizer.lr": {"kind": "grid", "values": [1e-3, 1e-2]},
    }
    fixed = {"objective.fault.step": 2, "objective.fault.rank": 0}
    result = go(make(base=base, space=space, fixed=fixed, concurrent=1))
    assert result.status == "finished" and result.exit_code == 0
    by_number = {trial.number: trial for trial in result.summary.trials}
    assert [by_number[number].status for number in range(4)] == ["failed", "failed", "finished", "finished"]
    assert "a bug, by a test" in by_number[0].note
    best = result.as_dict()["best"]
    assert best["values"]["optimizer.lr"] == 1e-2 and best["metrics"]["eval/velocity"] < by_number[2].metrics[
        "eval/velocity"]  # fmt: skip

    parent, children = tracked_runs(at_home, result.sweep_id)
    assert sorted(children) == [0, 1, 2, 3]
    assert [children[number].data.tags.get("ditlab.failure") for number in range(4)] == ["crash", "crash", None, None]
    assert parent.info.status == "FINISHED" and parent.data.tags["ditlab.best_trial"] == str(best["number"])
    assert parent.data.metrics["trials/failed"] == 2
    client = mlflow.MlflowClient(f"sqlite:///{at_home}/mlflow.db")
    files = {Path(file.path).name for file in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report.html", "best.yaml"} <= files

    record = read_record(Home(at_home).run(result.sweep_id))
    assert (record.status, record.step, record.total_steps, record.trials) == ("finished", 4, 4, 4)
    again = start_run(
        load_experiment(result.report.parent / "best.yaml"), None, local=True, remote=False, dry_run=False
    ).go(local=True)
    assert same_state(checkpoint_of(at_home, again.run_id), checkpoint_of(at_home, best["run_id"]))


@pytest.mark.slow
def test_asha_stops_what_is_worse_at_a_rung(ray, at_home):
    """One after the other, so that it is known who comes first: the second is far worse at step 2."""
    fields = {"fixed": {"training.steps": 8}, "scheduler": {"kind": "asha", "grace": 2, "reduction": 2}}
    result = go(make(name="halved", **fields, space={"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-6, 2e-2]}},
                     concurrent=1))  # fmt: skip
    statuses = {trial.number: (trial.status, trial.step) for trial in result.summary.trials}
    assert statuses[0] == ("finished", 8) and statuses[1] == ("stopped", 2)
    _, children = tracked_runs(at_home, result.sweep_id)
    assert children[1].info.status == "FINISHED"
    stopped = next(trial.run_id for trial in result.summary.trials if trial.number == 1)
    assert checkpoint_of(at_home, stopped).manifest.step == 2  # it can be gone on with


@pytest.mark.slow
def test_workers_of_a_stopped_trial_are_gone_within_seconds(ray, at_home):
    """The good one goes on for a minute; nobody waits for the bad one's room."""
    fixed = {"training.steps": 3000, "evaluation.every": 10}
    sweep = make(name="freed", fixed=fixed, scheduler={"kind": "asha", "grace": 10, "reduction": 2},
                 space={"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-7]}}, concurrent=2)  # fmt: skip
    prepared = ready(sweep)
    seen: list[tuple[float, int]] = []
    stopped_at: list[float] = []
    over = threading.Event()

    def watch() -> None:
        assert prepared.folder
        bad = prepared.folder.trials()[1].run_id
        record = Home(at_home).run(bad)
        while not over.wait(0.2):
            seen.append((time.monotonic(), len(worker_processes())))
            if not stopped_at and record.record.exists() and read_record(record).status == "stopped":
                stopped_at.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    result = Running(prepared).run()
    over.set()
    thread.join()
    assert [trial.status for trial in result.summary.trials] == ["finished", "stopped"]
    assert max(num for _, num in seen) == 2
    first_alone = next(at for at, num in seen if at > stopped_at[0] and num == 1)
    assert first_alone - stopped_at[0] < 10


@pytest.mark.slow
def test_a_population_takes_over_and_goes_on_with_mutated_rates(ray, at_home):
    space = {"optimizer.lr": {"kind": "loguniform", "low": 1e-5, "high": 1e-2}}
    sweep = make(name="population", space=space, search={"kind": "random"}, trials=4, seed=3,
                 fixed={"training.steps": 12, "checkpoint.keep": 20},
                 scheduler={"kind": "pbt", "interval": 4, "resample": 0.0})  # fmt: skip
    first, second = go(sweep), go(sweep)
    taken = {trial.number: exploits(Home(at_home).run(trial.run_id)) for trial in first.summary.trials}
    assert sum(map(len, taken.values())) >= 1
    numbers = {trial.run_id: trial.number for trial in first.summary.trials}
    for number, found in taken.items():
        run = Home(at_home).run(next(trial.run_id for trial in first.summary.trials if trial.number == number))
        history = metric_history(run)
        rates = dict(zip(history["train/lr"].steps, history["train/lr"].values, strict=True))
        for exploit in found:
            assert exploit.step == exploit.donor_step and numbers[exploit.donor] != number
            wanted = exploit.values["optimizer.lr"]
            assert rates[exploit.step + 1] == pytest.approx(wanted)  # in force, and logged
            at = history["pbt/optimizer.lr"].steps.index(exploit.step)
            assert history["pbt/optimizer.lr"].values[at] == wanted
            donor = metric_history(Home(at_home).run(exploit.donor))["eval/velocity"]
            own = history["eval/velocity"]
            scores = [series.values[series.steps.index(exploit.step)] for series in (own, donor)]
            assert scores[1] < scores[0]  # from the better one
        if found:
            tags = tracked_runs(at_home, first.sweep_id)[1][number].data.tags
            assert found[-1].donor in tags["ditlab.exploits"]
    # In step, so the load of the machine changes nothing.
    values = [[(t.number, t.values, t.metrics["eval/velocity"]) for t in one.summary.trials] for one in (first, second)]
    assert values[0] == values[1]


def driven(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(dump_yaml(make(**fields)))
    return path


def tune(home: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ditlab", "tune", *map(str, arguments), "--json"]
    environment = {**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(home: Path) -> int:
    records = list_runs(Home(home)) if (home / "train").exists() else []
    return sum(record.status == "finished" and record.trial >= 0 for record in records)


SEARCHES = {
    "random": {"search": {"kind": "random"}, "trials": 5,
               "space": {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}}},
    "grid": {"search": {"kind": "grid"},
             "space": {"optimizer.lr": {"kind": "grid", "values": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}}},
    "optuna": {"search": {"kind": "optuna", "startup": 2}, "trials": 5,
               "space": {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("search", SEARCHES)
def test_a_killed_sweep_goes_on_with_the_same_trials(search, tmp_path):
    home, whole = tmp_path / "home", tmp_path / "whole"
    path = driven(tmp_path, concurrent=1, fixed={"training.steps": 40, "evaluation.every": 20}, **SEARCHES[search])
    process = tune(home, path)
    wait_until(lambda: process.poll() is not None or ended(home) >= 2, 200, "two trials")
    process.kill()
    process.wait(10)
    (sweep,) = [record for record in list_runs(Home(home)) if record.trials]
    before = {record.run_id: record for record in list_runs(Home(home)) if record.trial >= 0}
    journals = {record.run_id: Home(home).run(record.run_id).journal.read_bytes()
                for record in before.values() if record.status == "finished"}  # fmt: skip
    said = run_process("tune", "--resume", sweep.run_id, "--json", home=home)
    assert said.code == 0, said.err
    trials = {trial["number"]: trial for trial in said.json["trials"]}
    assert sorted(trials) == [0, 1, 2, 3, 4] and all(trial["status"] == "finished" for trial in trials.values())
    for run_id, journal in journals.items():  # what had ended was not touched
        assert Home(home).run(run_id).journal.read_bytes() == journal
    for trial in trials.values():  # no step twice, none left out
        series = metric_history(Home(home).run(trial["run_id"]))["train/loss"]
        assert series.steps == list(range(1, 41))
    assert sorted(tracked_runs(home, sweep.run_id)[1]) == [0, 1, 2, 3, 4]
    if search != "optuna":
        unbroken = run_process("tune", path, "--json", home=whole)
        values = {trial["number"]: (trial["values"], trial["metrics"]) for trial in unbroken.json["trials"]}
        assert values == {number: (trial["values"], trial["metrics"]) for number, trial in trials.items()}
    wait_until(lambda: processes_of(home) == [], 30, "the end of all processes")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_saves_trials_and_resume_ends_them(tmp_path):
    home = tmp_path / "home"
    path = driven(tmp_path, fixed={"training.steps": 1500, "evaluation.every": 500}, concurrent=2)
    process = tune(home, path)
    wait_until(lambda: any(record.trial >= 0 and (Home(home).run(record.run_id).journal).exists()
                           and '"step":20,' in Home(home).run(record.run_id).journal.read_text()
                           for record in (list_runs(Home(home)) if (home / "train").exists() else [])),
               200, "step 20")  # fmt: skip
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert time.monotonic() - begun < 60 and "Traceback" not in err
    result = json.loads(out.splitlines()[-1])
    assert result["status"] == "interrupted" and f"--resume {result['run_id']}" in err
    for record in list_runs(Home(home)):
        if record.trial >= 0:
            assert record.status == "interrupted" and checkpoint_of(home, record.run_id).manifest.step == record.step
    wait_until(lambda: processes_of(home) == [], 30, "the end of all processes")
    said = run_process("tune", "--resume", result["run_id"], "--json", home=home)
    assert said.code == 0 and [trial["status"] for trial in said.json["trials"]] == ["finished", "finished"]
    for trial in said.json["trials"]:
        assert metric_history(Home(home).run(trial["run_id"]))["train/loss"].steps == list(range(1, 1501))


@pytest.mark.slow
def test_a_time_budget_ends_a_sweep_in_order(ray, at_home):
    fixed = {"training.steps": 100_000, "evaluation.every": 50_000}
    result = go(make(name="budgeted", fixed=fixed, time_budget=45.0, concurrent=2))
    assert result.status == "stopped" and result.exit_code == 0
    assert all(trial.status == "interrupted" and trial.step > 0 for trial in result.summary.trials)
    assert read_record(Home(at_home).run(result.sweep_id)).status == "stopped"
