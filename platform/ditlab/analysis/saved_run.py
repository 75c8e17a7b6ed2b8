"""A run's checkpoint, opened for sampling, evaluation, figures and export."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from denoisers.contract import RetiringObjective, TextCodec
from ditlab.analysis.user_errors import building
from ditlab.checkpoints.kept_averages import RebuiltAverage
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.data.loading.batches import held_out_batches
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.text.tokenizer import open_tokenizer, text_codec
from ditlab.home import Home, RunFolder
from ditlab.inputs.conditions import rows_for_samples
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import Progress, ignore_progress
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.mixture import packing_of
from ditlab.spec.overrides import Assignment, assign
from ditlab.tracking.tracker import RunTracker
from ditlab.training.export import load_network


@dataclass
class SavedRun:
    """A run's spec and its newest checkpoint."""

    home: Home
    folder: RunFolder
    spec: dict[str, Any]
    """The resolved experiment."""
    checkpoint: CheckpointReader
    warn: Callable[[str], None]
    """Called with each remark for people."""
    progress: Progress = ignore_progress
    """Receives the progress of long work."""
    average: RebuiltAverage | None = None
    """Average whose weights are used; None: the checkpoint's own."""

    def weights(self, prefix: str = "network.") -> dict[str, Tensor]:
        """Whole float32 tensors by name: of `average`, else the checkpoint's average, else its trained weights."""
        return self.average.weights(prefix) if self.average else self.checkpoint.weights(prefix=prefix)

    @property
    def step(self) -> int:
        """Optimiser step of the checkpoint."""
        return self.checkpoint.manifest.step

    def experiment(self, changes: Iterable[Assignment] = ()) -> Experiment:
        """The run's experiment with `changes` applied. Raises UserError for paths and values that do not fit."""
        return build_experiment(assign(self.spec, changes, class_for), f"run {self.folder.run_id}")

    def network(self, device: torch.device) -> nn.Module:
        """The network with averaged weights where the checkpoint has them, else with the weights themselves."""
        return load_network(self.spec, self.weights(), device)[1]

    def objective(self, device: torch.device, text: TextCodec | None) -> Any:
        """The objective with its own trained modules, averaged where the checkpoint has averages."""
        experiment = self.experiment()
        with building():
            objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, text)
        if objective.modules is not None:
            objective.modules.load_state_dict(self.weights("objective."))
            objective.modules.to(device).eval()
        return objective

    def sampler(self, experiment: Experiment) -> Any:
        """The sampler of `experiment`, with the run's tokeniser. Raises UserError where it cannot sample so."""
        family = experiment.family
        with building():
            return family.build_sampler(experiment.sampling, experiment.model, experiment.objective, self.text())

    def inputs(self, data: DataSplits | None, device: torch.device, changes: Iterable[Assignment] = ()) -> ModelInputs:
        """The conversion of data rows to inputs of model and loss, with the fields of the run's last step.

        Without data: the encoder of prompts alone. `changes` may move the run's encoders.
        """
        experiment = self.experiment(changes)
        inputs = ModelInputs.from_experiment(
            experiment, data.train.columns if data else (), device, self.warn, self.home
        )
        objective = experiment.family.build_objective(experiment.objective, experiment.model)
        if isinstance(objective, RetiringObjective):
            inputs.retire(objective.retired_fields(max(0, self.step - 1)))
        return inputs

    def text(self) -> TextCodec | None:
        """The codec of the tokeniser in the run's folder; None for a run on other data than text."""
        if not self.folder.tokenizer.exists():
            return None
        return replace(text_codec(open_tokenizer(self.folder.tokenizer)), packing=packing_of(self.experiment().data))

    def data(self) -> DataSplits:
        """The run's training and held-out data."""
        return open_data(self.experiment().data, self.home)

    def batch(self, num: int, device: torch.device) -> dict[str, Tensor]:
        """The first `num` held-out samples as the model's inputs; training samples where nothing is held out.

        Of several image sizes, the commonest one is taken.
        """
        data = self.data()
        view = rows_for_samples(data).fullest()
        inputs = self.inputs(data, device).only([field.name for field in self.experiment().model.batch_fields()])
        return inputs.prepare_batch(next(held_out_batches(view, inputs.fields, num, num)), view.columns)

    def tracker(self) -> RunTracker:
        """The run's tracker, reopened."""
        tracking = self.experiment().tracking
        return RunTracker(self.folder, tracking.uri, self.home, warn=self.warn, budget=tracking.budget)


def default_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
