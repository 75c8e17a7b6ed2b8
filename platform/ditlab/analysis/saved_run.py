"""A finished or running run, opened for sampling, evaluation, figures and export."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from denoisers.contract import RetiringObjective, TextCodec
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.cli.common import say
from ditlab.data.loading.field_checks import held_out_batches
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.text.tokenizer import codec, open_tokenizer
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder, writable_folder
from ditlab.inputs.conditions import shown_rows
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.runs.request import checkpoint_store
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import build_experiment, load_experiment
from ditlab.spec.overrides import Assignment, assign
from ditlab.tracking.records import RunRecord, find_training_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.export import load_network


@dataclass
class SavedRun:
    """A run's spec and its newest checkpoint."""

    home: Home
    folder: RunFolder
    record: RunRecord
    spec: dict[str, Any]
    checkpoint: CheckpointReader

    @property
    def step(self) -> int:
        return self.checkpoint.manifest.step

    def experiment(self, changes: Iterable[Assignment] = ()) -> Experiment:
        """The run's experiment with a few fields changed. Raises UserError for paths and values that do not fit."""
        return build_experiment(assign(self.spec, changes), f"run {self.folder.run_id}")

    def network(self, device: torch.device) -> nn.Module:
        """Its network with averaged weights where there are any."""
        return load_network(self.spec, self.checkpoint.weights(), device)[1]

    def objective(self, device: torch.device, text: TextCodec | None) -> Any:
        """Its objective, with the modules that it trained beside the network, averaged where there is an average."""
        experiment = self.experiment()
        objective: Any = experiment.objective.build(experiment.model, text)
        if objective.modules is not None:
            objective.modules.load_state_dict(self.checkpoint.weights(prefix="objective."))
            objective.modules.to(device).eval()
        return objective

    def inputs(self, data: DataSplits | None, device: torch.device, changes: Iterable[Assignment] = ()) -> ModelInputs:
        """What brings rows of its data to its model and loss: the fields that its last step had. Without data: what
        encodes prompts. `changes` say where its encoders are now."""
        experiment = self.experiment(changes)
        inputs = ModelInputs.of(experiment, data.train.columns if data else (), device, say, self.home)
        objective = experiment.objective.build(experiment.model)
        if isinstance(objective, RetiringObjective):
            inputs.retire(objective.retired_fields(max(0, self.step - 1)))
        return inputs

    def text(self) -> TextCodec | None:
        """How its tokens read, by the tokeniser that its folder carries; None of a run on other things than text."""
        return codec(open_tokenizer(self.folder.tokenizer)) if self.folder.tokenizer.exists() else None

    def data(self) -> DataSplits:
        return open_data(self.experiment().data, self.home)

    def batch(self, num: int, device: torch.device) -> dict[str, Tensor]:
        """The first `num` held-out samples (training samples where none are held out), as the model takes them: of the
        commonest image size, where there are several."""
        data = self.data()
        view = shown_rows(data).fullest()
        inputs = self.inputs(data, device).only([field.name for field in self.experiment().model.batch_fields()])
        return inputs.ready(next(held_out_batches(view, inputs.fields, num, num)), view.columns)

    def tracker(self) -> RunTracker:
        """The run's tracker, reopened."""
        tracking = self.experiment().tracking
        return RunTracker(self.folder, tracking.uri, self.home, warn=say, budget=tracking.budget)


def open_run(text: str) -> SavedRun:
    """The run that `text` means, with its newest whole checkpoint. Raises UserError where there is none."""
    home = Home.from_environment()
    found = find_training_run(home, text)
    if found.note:
        say(found.note)
    spec = load_experiment(found.folder.spec).to_dict()
    checkpoint = checkpoint_store(found.folder, spec).newest(say)
    if checkpoint is None:
        raise UserError(
            f"run {found.folder.run_id} ({found.record.name}, {found.record.status}) has no checkpoint yet; "
            "wait for its first one, or resume it."
        )
    return SavedRun(home, found.folder, found.record, spec, checkpoint)


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def output_folder(path: Path) -> Path:
    """A folder to write into, made. Raises UserError where that cannot be done."""
    return writable_folder(path, f"--out {path}", "name another folder")
