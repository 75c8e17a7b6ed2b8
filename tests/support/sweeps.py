"""Small sweeps, with folders and runs of trials that are written without training."""

import os
import secrets
import subprocess
import sys
from types import SimpleNamespace

import mlflow

from ditlab.spec.sweep import build_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.folder import trial_experiment
from ditlab.sweeps.prepare import prepare_sweep
from ditlab.sweeps.start import create_sweep
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from support.trainings.workers import TINY

METRIC = "eval/velocity"
LR = {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1}}
BASE = {**TINY, "evaluation": {"every": 2, "samples": 4, "limit": 32}}
NO_TRIALS = SimpleNamespace(search_alg=None, get_live_trials=list)
"""Tune's controller, as far as schedulers that stop trials call it."""


class FakeTrial:
    """The part of Tune's trial that schedulers read."""

    def __init__(self, number, **config):
        self.trial_id = secrets.token_hex(4)  # another in each session
        self.experiment_tag = ""
        self.number = number
        self.config = {"trial": {"number": number, "run_id": f"run-{number}", **config}}
        kept = SimpleNamespace(num_to_keep=None)
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=kept)
        )
        self.has_ended = False

    def set_config(self, config):
        self.config = config

    def is_finished(self):
        return self.has_ended


def sweep_of(space=None, **changes):
    """Four random draws of the learning rate of `tiny`, evaluated every second of its 6 steps."""
    mapping = {
        "name": "rates",
        "base": BASE,
        "space": dict(space or LR),
        "metric": METRIC,
        "trials": 4,
    }
    return build_sweep({**mapping, **changes}, "sweep.yaml")


def written_sweep(folder, space=None, **changes):
    """The sweep of `sweep_of` as a file."""
    path = folder / "sweep.yaml"
    path.write_text(dump_yaml(sweep_of(space, **changes).to_dict()), encoding="utf-8")
    return path


def prepared(sweep):
    """The sweep after its checks on a machine with two cores; DITLAB_HOME must be set."""
    return prepare_sweep(sweep, "sweep.yaml", [{"CPU": 2.0, "GPU": 0.0}], remote=False)


def started(sweep):
    """The sweep with its folder and its ledger."""
    return create_sweep(prepared(sweep))


def planned(one):
    """The trials of the sweep's ledger."""
    return one.folder.planned_trials()


def trial_run(home, sweep, trial, status, curve, **changes):
    """Write the record, spec and journal that a trial leaves; `curve` is its metric by step."""
    experiment = trial_experiment(sweep, trial)
    folder = create_run(
        home, experiment.name, family=experiment.model.family, spec_hash="", run_id=trial.run_id
    )
    folder.spec.write_text(dump_yaml(experiment.to_dict()), encoding="utf-8")
    log(folder, {step: {sweep.metrics[0]: value} for step, value in curve.items()})
    step = max(curve, default=0)
    update_record(
        folder,
        **{"status": status, "step": step, "total_steps": experiment.training.steps, **changes},
    )
    return folder


def trial_runs(home, one, ends):
    """`trial_run` of the first trials of the ledger: status and curve of each."""
    for trial, (status, curve) in zip(planned(one), ends, strict=False):
        trial_run(home, one.sweep, trial, status, curve)


def log(folder, points):
    """Append metrics by step to a run's journal."""
    journal = JournalWriter(folder)
    for step, values in points.items():
        journal.log_metrics(step, values)
    journal.close()


def small_sweep(**fields):
    """A grid of two learning rates of `tiny`, as a mapping."""
    return {
        "name": "swept",
        "base": {
            **TINY,
            "name": "base",
            "evaluation": {"every": 2, "samples": 0, "limit": 64},
            "checkpoint": {"every": None},
        },
        "space": {"optimizer.lr": {"kind": "grid", "values": [1e-2, 1e-3]}},
        "search": {"kind": "grid"},
        "metric": METRIC,
        **fields,
    }


def start_tune(home, *arguments, **streams):
    """Start `ditlab tune` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ditlab", "tune", *map(str, arguments), "--json"],
        env={**os.environ, "DITLAB_HOME": str(home), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        **streams,
    )


def by_number(result):
    """The trials of a sweep's result."""
    return sorted(result.summary.trials, key=lambda trial: trial.number)


def tracked_runs(home, sweep_id):
    """(MLflow's run of the sweep, MLflow's runs of its trials by number)."""
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`ditlab.run` = '{sweep_id}'")
    children = client.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    by_number = {int(child.data.tags["ditlab.trial"]): child for child in children}
    assert len(by_number) == len(children), "a trial is tracked twice"
    return parent, by_number
