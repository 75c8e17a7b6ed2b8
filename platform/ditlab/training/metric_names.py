"""Names of the metrics of a run, known before it starts."""

from typing import Any

from ditlab.data.splits import DataSplits
from ditlab.engine.phase_clock import PHASES
from ditlab.quality import quality_names
from ditlab.spec.experiment import Experiment


def metric_names(experiment: Experiment, data: DataSplits) -> list[str]:
    """Return the MLflow names of the metrics of every step, then of every evaluation."""
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
    trained = [name for name, weight in objective.weights.items() if weight]
    names = [f"train/{name}" for name in ("loss", *trained, "grad_norm", "lr", "samples_per_second", "data_wait")]
    if experiment.evaluation.every is not None and len(data.held_out):
        parts = data.mixture.measured(experiment.evaluation.limit) if data.mixture else ()
        names += [
            f"eval/{part}{name}" for part in ("", *(f"{part}/" for part in parts)) for name in objective.metric_names()
        ]
        names += quality_names(experiment, data) if experiment.evaluation.quality else ()
    return names


def pace_names(experiment: Experiment) -> list[str]:
    """Return the MLflow names of the metrics of a run's speed, logged about once a second."""
    tokens = ["tokens_per_second"] if any(field.name == "tokens" for field in experiment.batch_fields()) else []
    names = ("mfu", "hfu", "samples_per_second", *tokens, "memory")
    return [*(f"time/{phase}" for phase in PHASES), *(f"perf/{name}" for name in names)]
