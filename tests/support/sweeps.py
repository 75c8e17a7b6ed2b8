"""Small sweeps, with folders and runs of trials that are written without training."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow

from ditlab.home import Home, RunFolder
from ditlab.reports.sweep_records import Trial
from ditlab.spec.sweep import Sweep, build_sweep
from ditlab.spec.yaml_text import dump_yaml
from ditlab.sweeps.folder import trial_experiment
from ditlab.sweeps.prepare import PreparedSweep, prepare_sweep
from ditlab.sweeps.start import StartedSweep, create_sweep
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from support.trainings.workers import TINY

METRIC = "eval/velocity"
LR: dict[str, Any] = {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1}}
BASE: dict[str, Any] = {**TINY, "evaluation": {"every": 2, "samples": 4, "limit": 32}}
MACHINE = [{"CPU": 2.0, "GPU": 0.0}]


def sweep_of(space: Mapping[str, Any] | None = None, **changes: Any) -> Sweep:
    """Four random draws of the learning rate of `tiny`, evaluated every second of its 6 steps."""
    mapping = {
        "name": "rates",
        "base": BASE,
        "space": dict(space or LR),
        "metric": METRIC,
        "trials": 4,
    }
    return build_sweep({**mapping, **changes}, "sweep.yaml")


def written_sweep(folder: Path, space: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """The sweep of `sweep_of` as a file."""
    path = folder / "sweep.yaml"
    path.write_text(dump_yaml(sweep_of(space, **changes).to_dict()), encoding="utf-8")
    return path


def prepared(sweep: Sweep, nodes: Sequence[Mapping[str, float]] = MACHINE) -> PreparedSweep:
    """The sweep after its checks on a machine with two cores; DITLAB_HOME must be set."""
    return prepare_sweep(sweep, "sweep.yaml", nodes, remote=False)


def started(sweep: Sweep) -> StartedSweep:
    """The sweep with its folder and its ledger."""
    return create_sweep(prepared(sweep))


def planned(one: StartedSweep) -> list[Trial]:
    """The trials of the sweep's ledger."""
    return one.folder.planned_trials()


def trial_run(
    home: Home, sweep: Sweep, trial: Trial, status: str, curve: Mapping[int, float], **changes: Any
) -> RunFolder:
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


def trial_runs(
    home: Home, one: StartedSweep, ends: Iterable[tuple[str, Mapping[int, float]]]
) -> None:
    """`trial_run` of the first trials of the ledger: status and curve of each."""
    for trial, (status, curve) in zip(planned(one), ends, strict=False):
        trial_run(home, one.sweep, trial, status, curve)


def log(folder: RunFolder, points: Mapping[int, Mapping[str, float]]) -> None:
    """Append metrics by step to a run's journal."""
    journal = JournalWriter(folder)
    for step, values in points.items():
        journal.log_metrics(step, values)
    journal.close()


def small_sweep(**fields: Any) -> dict[str, Any]:
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


def tracked_runs(home: Path, sweep_id: str) -> tuple[Any, dict[int, Any]]:
    """(MLflow's run of the sweep, MLflow's runs of its trials by number)."""
    client = mlflow.MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`ditlab.run` = '{sweep_id}'")
    children = client.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    by_number = {int(child.data.tags["ditlab.trial"]): child for child in children}
    assert len(by_number) == len(children), "a trial is tracked twice"
    return parent, by_number
