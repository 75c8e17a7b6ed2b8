"""Whole sweeps on Ray: trials are ordinary runs, and schedulers stop and perturb them."""

import json
import time
from pathlib import Path

import mlflow
import pytest

from ditlab.api.sweeps import tune
from ditlab.api.training import train
from ditlab.reports.formatting import describe_value
from ditlab.spec.sweep import build_sweep
from ditlab.sweeps.folder import read_takeovers
from ditlab.sweeps.forecast import Speed
from ditlab.sweeps.session import SweepSession
from ditlab.sweeps.trial import values_at
from ditlab.tracking.history import JournalFacts, metric_history
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import read_record
from ditlab_addons.check.functions import verify
from support.clusters.faults import wait_until, worker_processes
from support.clusters.unbroken import checkpoint_of
from support.damage import refused
from support.sweeps import by_number, small_sweep, tracked_runs
from support.trainings.workers import TINY, same_state


def run_sweep(on_progress=None, **fields):
    """Run `small_sweep` in this process."""
    return tune(build_sweep(small_sweep(**fields), "test"), on_progress=on_progress)


def test_trials_are_runs_and_failed_ones_do_not_end_the_sweep(ray, tracked_home, breaking_family):
    """The first of two trials fails, in a worker that the other reuses; the best spec trains to the
    bits of its trial.

    Workers and this process have one thread each: sums over more threads round otherwise.
    """
    root = tracked_home.root
    base = {**small_sweep()["base"], "model": {**TINY["model"], "family": "breaking"}}
    space = {"objective.fault.kind": {"kind": "grid", "values": ["bug", "none"]}}
    fixed = {"objective.fault.step": 2, "objective.fault.rank": 0, "resources.cpus_per_worker": 1}
    progress = []
    result = run_sweep(progress.append, base=base, space=space, fixed=fixed, concurrent=1)
    assert result.status == "finished" and result.exit_code == 0
    failed, finished = by_number(result)
    assert (failed.status, finished.status) == ("failed", "finished")
    assert "a bug, by a test" in failed.note
    best = result.to_dict()["best"]
    assert best["number"] == 1 and best["values"]["objective.fault.kind"] == "none"
    assert progress[-1].counts == "1 finished, 1 failed of 2" and progress[-1].leader == 1

    parent, children = tracked_runs(root, result.sweep_id)
    failures = {number: run.data.tags.get("ditlab.failure") for number, run in children.items()}
    assert failures == {0: "crash", 1: None}
    assert children[1].info.run_name == f"fault=none ({result.summary.name}-001)"
    assert children[1].data.tags["ditlab.changed"] == "fault=none"
    client = mlflow.MlflowClient(f"sqlite:///{root}/mlflow.db")
    facts = Path(client.download_artifacts(parent.info.run_id, "facts.json")).read_text()
    assert parent.info.status == "FINISHED" and json.loads(facts)["ditlab.best_trial"] == "1"
    assert parent.data.metrics["trials/failed"] == 1
    assert parent.data.metrics["best/eval/velocity"] == best["metrics"]["eval/velocity"]

    again = train(result.report.parent / "best.yaml", local=True)
    assert same_state(checkpoint_of(root, again.run_id), checkpoint_of(root, best["run_id"]))


@pytest.mark.slow
def test_workers_of_a_stopped_trial_end_within_seconds(ray, tracked_home):
    """The good trial trains for a minute more, and the bad one's resources are released
    meanwhile.
    """
    wait_until(lambda: not worker_processes(), 60, "workers of an earlier test to end")
    seen = []
    stopped_at = []

    def watch(progress):
        seen.append((time.monotonic(), len(worker_processes())))
        if not stopped_at and progress.trials[1].status == "stopped":
            stopped_at.append(time.monotonic())

    result = run_sweep(
        watch,
        fixed={"training.steps": 3000, "evaluation.every": 10},
        scheduler={"kind": "asha", "grace": 10, "reduction": 2},
        space={"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-7]}},
        concurrent=2,
    )
    good, bad = by_number(result)
    assert (good.status, good.step, bad.status) == ("finished", 3000, "stopped")
    # from which it can be resumed
    assert checkpoint_of(tracked_home.root, bad.run_id).manifest.step == bad.step < 3000
    assert max(num for _, num in seen) == 2
    first_alone = next(at for at, num in seen if at > stopped_at[0] and num == 1)
    assert first_alone - stopped_at[0] < 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_population_takes_over_checkpoints_and_mutates_learning_rates(ray, tracked_home):
    space = {"optimizer.lr": {"kind": "loguniform", "low": 1e-5, "high": 1e-2}}
    result = run_sweep(
        space=space,
        search={"kind": "random"},
        trials=4,
        seed=3,
        fixed={"training.steps": 12, "checkpoint.keep": 20},
        scheduler={"kind": "pbt", "interval": 4, "resample": 0.0},
    )
    runs = [tracked_home.run(trial.run_id) for trial in by_number(result)]
    takeovers = [read_takeovers(run) for run in runs]
    _, children = tracked_runs(tracked_home.root, result.sweep_id)
    assert any(takeovers)
    for number, (run, found) in enumerate(zip(runs, takeovers, strict=True)):
        history = metric_history(run)
        rates = dict(zip(history["train/lr"].steps, history["train/lr"].values, strict=True))
        for takeover in found:
            assert takeover.step == takeover.donor_step and takeover.donor != run.run_id
            rate = takeover.values["optimizer.lr"]
            assert rates[takeover.step + 1] == pytest.approx(rate)  # in force, and logged
            logged = values_at(run, takeover.step, ["pbt/optimizer.lr"])
            assert logged == {"pbt/optimizer.lr": rate}
            scores = [
                values_at(each, takeover.step, ["eval/velocity"])["eval/velocity"]
                for each in (run, tracked_home.run(takeover.donor))
            ]
            assert scores[1] < scores[0]  # the donor was better
        if found:
            tags = JournalFacts.of(read_content(run.journal)).tags
            assert found[-1].donor in tags["ditlab.exploits"]
            rate = found[-1].values["optimizer.lr"]
            assert children[number].info.run_name.startswith(f"lr={describe_value(rate)} ")
        parts = verify(run.run_id, steps=0).parts
        assert [(part.part, part.sentence) for part in parts if part.verdict == "off"] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_time_budget_stops_a_sweep_in_order(ray, tracked_home, monkeypatch):
    """The budget counts as used up once every trial has trained, however long its workers took to
    start.
    """
    trained = []

    def watch(progress):
        if all(trial.step > 0 for trial in progress.trials):
            trained.append(True)

    monkeypatch.setattr(SweepSession, "_elapsed", lambda self: 60.0 if trained else 0.0)
    fixed = {"training.steps": 100_000, "evaluation.every": 50_000}
    result = run_sweep(watch, fixed=fixed, time_budget=45.0, concurrent=2)
    assert result.status == "stopped" and result.exit_code == 0
    assert all(trial.status == "interrupted" and trial.step > 0 for trial in result.summary.trials)
    assert read_record(tracked_home.run(result.sweep_id)).status == "stopped"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_budget_of_device_hours_stops_a_sweep_that_goes_on_with_a_larger_one(
    ray, tracked_home, monkeypatch
):
    """The forecast takes a trial for a hundred samples, and the budget for half of what the trials
    really take.
    """
    monkeypatch.setattr("ditlab.sweeps.forecast._time_steps", lambda *_: Speed(1e9, "no step"))
    fixed, said = {"training.steps": 400, "evaluation.every": 200}, list[str]()
    space = {"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-3, 1e-4, 1e-5]}}
    fields = {"fixed": fixed, "space": space, "concurrent": 1}
    sweep = build_sweep(small_sweep(budget={"device_hours": 0.001}, **fields), "test")
    result = tune(sweep, say=said.append)
    assert said[-1].startswith("budget.device_hours=0.001 holds: 0 core hours are used, and about ")
    assert said[-1].endswith(" more are expected")
    assert (result.status, result.exit_code) == ("stopped", 0)
    assert result.reason.startswith("budget.device_hours=0.001 is used up (0.00")
    assert read_record(tracked_home.run(result.sweep_id)).message == result.reason
    assert sum(trial.has_ended for trial in result.summary.trials) < 4
    with refused(r"=0.001 is used up: the trials have taken 0.00"):
        tune(resume=result.sweep_id)
    larger = build_sweep(small_sweep(budget={"device_hours": 1.0}, **fields), "test")
    again = tune(larger, resume=result.sweep_id)
    assert again.reason == "" and all(trial.status == "finished" for trial in again.summary.trials)
