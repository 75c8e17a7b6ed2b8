"""Evaluation of a saved checkpoint as the training workers would evaluate it, on one process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from denoisers.contract import RetiringObjective
from denoisers.figures import Figure
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.quality.evaluator import QualityEvaluator
from ditlab.quality.measurement import held_out_measurement
from ditlab.receipts.records import measurement_tags
from ditlab.training.evaluation import BySample, draw_samples, metrics_by_part
from ditlab.training.export import load_network
from ditlab.training.plan import TrainingRun


@dataclass
class EvaluatedCheckpoint:
    """Evaluation of a checkpoint's averaged weights."""

    metrics: dict[str, float]
    """Metrics under their MLflow names."""
    tags: dict[str, str]
    """Tags of the measurements."""
    samples: Figure | None = None
    """Sample grid, as shown to people; None where none is drawn."""
    by_sample: BySample = field(default_factory=dict)
    """Loss components by held-out sample."""


def evaluate_checkpoint(
    run: TrainingRun, reader: CheckpointReader, rank: Rank, warn: Callable[[str], None]
) -> EvaluatedCheckpoint:
    """Evaluate the averaged weights of a checkpoint (the weights themselves where it has no average)."""
    experiment, data, device = run.experiment, run.data, rank.device
    evaluation, family = experiment.evaluation, experiment.family
    network = load_network(experiment, reader.weights(), device)
    objective: Any = family.build_objective(experiment.objective, experiment.model, data.text)
    if objective.modules is not None:
        objective.modules.load_state_dict(reader.weights(prefix="objective."))
        objective.modules.to(device).eval()
    inputs = ModelInputs.from_experiment(experiment, data.train.columns, device, warn, run.home)
    if isinstance(objective, RetiringObjective):
        inputs.retire(objective.retired_fields(max(0, reader.manifest.step - 1)))
    batch_size = experiment.micro_size >> run.memory.halvings
    at_once = max(batch_size, evaluation.samples)
    found, by_sample = EvaluatedCheckpoint({}, {}), dict[str, Any]()
    measurements = {
        "eval": held_out_measurement(
            experiment, data, evaluation.limit, experiment.training.precision, device.type, run.home
        )
    }
    with torch.no_grad():
        values = metrics_by_part(
            network, objective, experiment, data, inputs, batch_size, evaluation.limit, rank, ControlChannel(rank),
            by_sample=by_sample,
        )  # fmt: skip
        found.metrics = {f"eval/{name}": value for name, value in values.items()}
        if evaluation.samples:
            sampler, samples = draw_samples(network, experiment, data, evaluation.samples, inputs)
            found.samples = sampler.show(samples)
        if evaluation.quality:
            quality = QualityEvaluator(experiment, data, run.home, device, warn, inputs=inputs)
            found.metrics |= quality.measure(quality.draw(network, evaluation.quality, at_once))
            measurements["quality"] = quality.measurement(evaluation.quality, at_once, experiment.training.precision)
    kept = experiment.objective.weights.model_dump()
    found.by_sample = {name: each for name, each in by_sample.items() if name in kept}
    found.tags = dict(measurement_tags(measurements))
    return found
