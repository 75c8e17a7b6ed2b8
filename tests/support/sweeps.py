"""Small sweeps, their folders and what their trials leave, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ditlab.home import Home, RunFolder
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.spec.sweep.loading import build_sweep
from ditlab.spec.sweep.spec import Sweep
from ditlab.sweeps.prepare import ReadySweep, create_sweep, ready_sweep
from ditlab.sweeps.trials import PlannedTrial, trial_experiment
from ditlab.tracking.journal.writer import JournalWriter
from ditlab.tracking.records import create_run, update_record
from support.workers import TINY

METRIC = "eval/velocity"
LR: dict[str, Any] = {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-1}}
BASE: dict[str, Any] = {**TINY, "evaluation": {"every": 2, "samples": 4, "limit": 32}}
MACHINE = [{"CPU": 2.0, "GPU": 0.0}]


def sweep_of(space: Mapping[str, Any] | None = None, **changes: Any) -> Sweep:
    """Four random draws of the learning rate of `tiny`, evaluated every second of its 6 steps."""
    mapping = {"name": "rates", "base": BASE, "space": dict(space or LR), "metric": METRIC, "trials": 4}
    return build_sweep({**mapping, **changes}, "sweep.yaml")


def written_sweep(folder: Path, space: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """The same as a file."""
    path = folder / "sweep.yaml"
    path.write_text(dump_yaml(sweep_of(space, **changes).to_dict()), encoding="utf-8")
    return path


def ready(sweep: Sweep, nodes: Sequence[Mapping[str, float]] = MACHINE) -> ReadySweep:
    """Checked on a machine with two cores; DITLAB_HOME is set."""
    return ready_sweep(sweep, "sweep.yaml", nodes, remote=False)


def created(sweep: Sweep) -> ReadySweep:
    """With its folder and its ledger."""
    one = ready(sweep)
    create_sweep(one)
    return one


def planned(one: ReadySweep) -> list[PlannedTrial]:
    assert one.folder
    return one.folder.trials()


def trial_run(
    home: Home, sweep: Sweep, trial: PlannedTrial, status: str, curve: Mapping[int, float], **changes: Any
) -> RunFolder:
    """What a trial leaves: its record, its spec, the metric by step in its journal."""
    experiment = trial_experiment(sweep, trial)
    folder = create_run(home, experiment.name, family=experiment.model.family, spec_hash="", run_id=trial.run_id)
    folder.spec.write_text(dump_yaml(experiment.to_dict()), encoding="utf-8")
    log(folder, {step: {sweep.metrics[0]: value} for step, value in curve.items()})
    step = max(curve, default=0)
    update_record(folder, **{"status": status, "step": step, "total_steps": experiment.training.steps, **changes})
    return folder


def log(folder: RunFolder, points: Mapping[int, Mapping[str, float]]) -> None:
    """Metrics by step, into a run's journal."""
    journal = JournalWriter(folder)
    for step, values in points.items():
        journal.log_metrics(step, values)
    journal.close()
