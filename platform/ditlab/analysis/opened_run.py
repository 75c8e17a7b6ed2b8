"""A training run, with or without a checkpoint yet, its weights, and records that are added after
its training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.analysis.user_errors import building
from ditlab.checkpoints.kept_averages import RebuiltAverage
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.data.loading.batches import held_out_batches
from ditlab.data.loading.field_checks import check_fields
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import open_tokenizer, text_codec
from ditlab.encoders.checkpoint import encoder_difference
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.inputs.conditions import name_classes, rows_for_samples
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import fixed_noise
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment, load_recorded_experiment
from ditlab.spec.mixture import packing_of
from ditlab.spec.overrides import Assignment, assign
from ditlab.spec.plugins import check_installed
from ditlab.storage.local import writable_folder
from ditlab.tracking.journal import recorded_dataset
from ditlab.tracking.records import FoundRun, RunRecord
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker
from ditlab.training.export import load_network
from ditlab_models.contract import BatchField, RetiringObjective, TextCodec


@dataclass(frozen=True)
class OpenedRun:
    """A training run's folder, record and experiment."""

    home: Home
    folder: RunFolder
    record: RunRecord
    experiment: Experiment
    warn: Callable[[str], None]
    """Called with each remark for people."""
    progress: Progress
    """Receives the progress of long work."""
    anyway: bool = False
    """True to go on with other data than the run's."""

    def saved(self) -> SavedRun:
        """The run with its newest whole checkpoint. Raises UserError where it has none yet."""
        found = self.saved_if_any()
        if found is None:
            raise UserError(
                f"run {self.folder.run_id} ({self.record.name}, {self.record.status}) has no "
                "checkpoint yet; wait for its first one, or resume it."
            )
        return found

    def saved_if_any(self) -> SavedRun | None:
        """The run with its newest whole checkpoint; None where it has none yet."""
        checkpoint = checkpoint_store(self.folder, self.experiment.checkpoint.storage).newest(
            self.warn
        )
        if checkpoint is None:
            return None
        own = (
            self.home,
            self.folder,
            self.record,
            self.experiment,
            self.warn,
            self.progress,
            self.anyway,
        )
        return SavedRun(*own, checkpoint=checkpoint)

    def kept_spec(self, spec_hash: str) -> Experiment | None:
        """The spec by which attempts of a hash trained, also where a resume has changed the run's
        since; None where it is gone, or has another hash than its name says."""
        if spec_hash == self.experiment.content_hash():
            return self.experiment
        if not re.fullmatch("[0-9a-f]{16}", spec_hash):
            return None
        try:
            found = load_recorded_experiment(self.folder.spec_of(spec_hash))
        except UserError:
            return None
        return found if found.content_hash() == spec_hash else None

    def writable_folder(self, name: str) -> Path:
        """A folder below the run's own, made where it is missing. Raises UserError where it cannot
        be written.
        """
        owner = f"the folder of run {self.folder.run_id}"
        return writable_folder(self.folder.path / name, owner, "make DITLAB_HOME writable")

    def tracker(self) -> RunTracker:
        """The run's tracker, reopened."""
        tracking = self.experiment.tracking
        return RunTracker(
            self.folder, tracking.uri, self.home, warn=self.warn, budget=tracking.budget
        )


@dataclass(frozen=True, kw_only=True)
class SavedRun(OpenedRun):
    """A run with its newest whole checkpoint, opened for sampling, evaluation, figures and
    export.
    """

    checkpoint: CheckpointReader
    average: RebuiltAverage | None = None
    """Average whose weights are used; None: the checkpoint's own."""

    def weights(self, prefix: str = "network.", merged: bool = True) -> dict[str, Tensor]:
        """Whole float32 tensors by name: of `average`, else the checkpoint's average, else its
        trained weights; with adapters in those of the base, if `merged`."""
        if self.average:
            return self.average.weights(prefix, merged)
        return self.checkpoint.weights(prefix=prefix, merged=merged)

    @property
    def step(self) -> int:
        """Optimiser step of the checkpoint."""
        return self.checkpoint.manifest.step

    def experiment_with(self, changes: Iterable[Assignment]) -> Experiment:
        """The run's experiment with `changes` applied. Raises UserError for paths and values that
        do not fit.
        """
        return build_experiment(
            assign(self.experiment.to_dict(), changes, class_for), f"run {self.folder.run_id}"
        )

    def network(self, device: torch.device) -> nn.Module:
        """The network with averaged weights where the checkpoint has them, else with the weights
        themselves.
        """
        return load_network(self.experiment, self.weights(), device)

    def objective(self, device: torch.device, text: TextCodec | None) -> Any:
        """The objective with its own trained modules, averaged where the checkpoint has
        averages.
        """
        spec = self.experiment
        with building():
            objective: Any = spec.family.build_objective(spec.objective, spec.model, text)
        if objective.modules is not None:
            objective.modules.load_state_dict(self.weights("objective."))
            objective.modules.to(device).eval()
        return objective

    def sampler(self, experiment: Experiment) -> Any:
        """The sampler of `experiment`, with the run's tokeniser and the names of its classes.
        Raises UserError where it cannot sample so."""
        family = experiment.family
        with building():
            sampler = family.build_sampler(
                experiment.sampling, experiment.model, experiment.objective, self.text()
            )
        return name_classes(sampler, recorded_dataset(self.folder.journal).get("classes", {}))

    def inputs(
        self, data: DataSplits | None, device: torch.device, changes: Iterable[Assignment] = ()
    ) -> ModelInputs:
        """The conversion of data rows to inputs of model and loss, with the fields of the run's
        last step.

        Without data: the encoder of prompts alone. `changes` may move the run's encoders, which
        must be the same ones.
        """
        experiment = self.experiment_with(changes)
        self.check_encoders(experiment)
        columns = data.train.columns if data else ()
        inputs = ModelInputs.from_experiment(experiment, columns, device, self.warn, self.home)
        objective = experiment.family.build_objective(experiment.objective, experiment.model)
        if isinstance(objective, RetiringObjective):
            inputs.retire(objective.retired_fields(max(0, self.step - 1)))
        return inputs

    def text(self) -> TextCodec | None:
        """The codec of the tokeniser in the run's folder; None for a run on other data than
        text.
        """
        if not self.folder.tokenizer.exists():
            return None
        return replace(
            text_codec(open_tokenizer(self.folder.tokenizer)),
            packing=packing_of(self.experiment.data),
        )

    def data(self) -> DataSplits:
        """The run's training and held-out data. Raises UserError for other data, without
        `anyway`.
        """
        data = open_data(self.experiment.data, self.home)
        self._tell(data.difference(recorded_dataset(self.folder.journal)))
        return data

    def check_encoders(self, experiment: Experiment) -> None:
        """Raise UserError for encoders in folders that are others than the run's, without
        `anyway`.
        """
        recorded = recorded_dataset(self.folder.journal).get("encoders", {})
        self._tell(encoder_difference(experiment.encoders, recorded))

    def _tell(self, difference: str) -> None:
        """Raise UserError on what is other than when the run was trained, or say so with
        `anyway`.
        """
        if difference and not self.anyway:
            raise UserError(
                f"run {self.folder.run_id}: {difference}; bring that back, or give --anyway "
                "for what shows and measures, of which nothing is added to the run."
            )
        if difference:
            self.warn(f"{difference}.")

    def batch(self, num: int, device: torch.device) -> dict[str, Tensor]:
        """The first `num` held-out samples (else training) of the commonest size, as the model's
        inputs.
        """
        data = self.data()
        view = rows_for_samples(data).fullest()
        inputs = self.inputs(data, device).only(
            [field.name for field in self.experiment.model.batch_fields()]
        )
        raw = next(held_out_batches(view, inputs.fields, num, num))
        return inputs.prepare_batch(raw, view.columns, noise=fixed_noise(0, device))


def chosen_rows(saved: SavedRun, fields: Sequence[BatchField], choice: str | None) -> View:
    """The rows of `--data` (a store, `train`; default: `held_out`). Raises UserError for none, or
    for other fields.
    """
    data = saved.data()
    if choice is None:
        if not len(data.held_out):
            saved.warn(f"{data.note or 'nothing is held out'} Training rows are completed instead.")
        return rows_for_samples(data)
    if choice == "train":
        return data.train
    if choice == "held_out":
        if not len(data.held_out):
            raise UserError(
                "--data held_out: this run holds nothing out; use --data train, or name a "
                "store's folder."
            )
        return data.held_out
    store = open_named_store("--data", choice, saved.home)
    # all rows, without a list of them
    view = View(store, hold_out_blocks(store, 0.0)[0], f"--data {choice}")
    check_fields(view, fields)
    for each in fields:
        names = view.columns[each.name].names
        expected = data.train.columns[each.name].names
        if expected and names != expected:
            pairs = list(zip_longest(names, expected))
            place = next(place for place, (name, own) in enumerate(pairs) if name != own)
            here, there = (f"'{text}'" if text else "no name" for text in pairs[place])
            raise UserError(
                f"{view.origin} has {here} as entry {place + 1} of {each.name}, where the run's "
                f"own data ({data.train.origin}) have {there}; import it with the same "
                "features in the same order."
            )
    return view


def default_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computing_threads(device: torch.device) -> int | None:
    """CPU threads that compute on a device; None on a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else None


def open_found(
    found: FoundRun, home: Home, warn: Callable[[str], None], progress: Progress = ignore_progress
) -> OpenedRun:
    """Open a run, with its note as a warning. Raises UserError where a package of its parts is
    missing.
    """
    if found.note:
        warn(found.note)
    check_installed(found.record.plugins, f"run {found.folder.run_id}")
    return OpenedRun(
        home,
        found.folder,
        found.record,
        load_recorded_experiment(found.folder.spec),
        warn,
        progress,
    )


@contextmanager
def logged_records(tracker: RunTracker) -> Iterator[RunTracker]:
    """Add records in the block, then send them for up to 30 s; the tracker's `num_unsent` then wait
    for `runs sync`.

    After an interruption nothing is waited for."""
    timeout = CATCH_UP_TIMEOUT
    try:
        yield tracker
    except KeyboardInterrupt:
        timeout = 0.0
        raise
    finally:
        tracker.close(timeout)
