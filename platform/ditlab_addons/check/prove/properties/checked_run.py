"""A run whose loss, evaluation and sampler are checked, in networks without an engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.experiment import Experiment
from ditlab.training.plan import TrainingRun
from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.reference import (
    ReferenceModel,
    ReferenceNoise,
    ReferenceTrainer,
    Whole,
)

ROWS = 32
"""Training rows of a pass."""


@dataclass(frozen=True)
class CheckedRun:
    """Run with the weights that are checked, and the findings that comparisons add to."""

    run: TrainingRun
    reference: ReferenceTrainer
    inputs: ModelInputs
    pass_size: int
    """Held-out rows of a pass."""
    findings: Findings
    weights: Whole
    """Weights that an evaluation takes."""

    @property
    def experiment(self) -> Experiment:
        """The run's experiment."""
        return self.run.experiment

    def model(self, dtype: torch.dtype) -> ReferenceModel:
        """Return network and objective with the weights, in evaluation mode. One model of each
        precision serves all calls."""
        model = self.reference.model(self.weights, dtype)
        model.module.eval()
        return model

    def training_rows(self) -> dict[str, Tensor]:
        """Return the first ROWS rows of the training data, of one shape, as a batch; fewer rows are
        repeated."""
        view = self.run.data.train.fullest()
        indices = np.arange(ROWS) % len(view)
        raw = {each.name: view.gather(each.name, indices) for each in self.inputs.fields}
        return self.inputs.prepare_batch(raw, view.columns, noise=self.training_noise(0))

    def training_noise(self, step: int) -> ReferenceNoise:
        """Return the random numbers of ROWS rows at a training step (from 0)."""
        return ReferenceNoise(self.experiment.seed, "train", step, 0, ROWS, self.inputs.device)
