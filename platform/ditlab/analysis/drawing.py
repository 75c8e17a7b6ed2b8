"""Drawing samples from the weights of a run or of an export, with the real rows that they complete or are drawn for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from denoisers.contract import BatchField, Sampler, SampleRequest, TextCodec
from ditlab.analysis.averages import with_average
from ditlab.analysis.opened_run import SavedRun, default_device
from ditlab.analysis.sample_options import SampleKeywords, SampleOptions
from ditlab.analysis.sample_request import LABEL, class_number, folder_name, num_samples, sample_request
from ditlab.analysis.sample_set import SampleSet
from ditlab.analysis.user_errors import building
from ditlab.data.loading.batches import check_fields
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import TOKENIZER_NAME, open_tokenizer, text_codec
from ditlab.errors import UserError
from ditlab.inputs.conditions import DEFAULT_NUM_SAMPLES, num_selected_rows, rows_for_samples, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.evaluator import draw_reported
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import assign
from ditlab.training.export import SPEC_NAME, WEIGHTS_NAME, check_export, load_checked


def draw(saved: SavedRun, options: SampleOptions) -> SampleSet:
    """Draw samples from a run's averaged weights, else its weights. Raises UserError for options that do not fit."""
    if isinstance(options.label, str):
        column = saved.data().train.columns.get(LABEL)
        options = replace(options, label=class_number(options.label, column.names if column is not None else ()))
    experiment = saved.experiment_with(options.changes())
    sampler = saved.sampler(experiment)
    request = sample_request(options, sampler)
    view: View | None = None
    if sampler.takes_rows == "completed":
        view = chosen_rows(saved, experiment.batch_fields(), options.data)
    elif options.data is not None:
        raise UserError(
            f"--data {options.data}: this run's family draws from noise alone and completes no rows; leave it out."
        )
    elif sampler.takes_rows == "conditions" and not request.prompts:
        view = rows_for_samples(saved.data())
    columns = view.columns if view else ()
    inputs = ModelInputs.from_experiment(experiment, columns, default_device(), saved.warn, saved.home)

    def network() -> nn.Module:
        with with_average(saved, options.ema) as averaged:
            return averaged.network(inputs.device)

    owner, folder = saved.folder.run_id, saved.folder.path
    place = (saved.step, owner, folder, view, saved.warn, saved.progress)
    return draw_set(options, experiment, sampler, request, inputs, network, *place)


def draw_set(
    options: SampleOptions, experiment: Experiment, sampler: Any, request: SampleRequest, inputs: ModelInputs,
    open_network: Callable[[], nn.Module], step: int, owner: str, folder: Path, view: View | None = None,
    warn: Callable[[str], None] = lambda _: None, progress: Progress = ignore_progress,
) -> SampleSet:  # fmt: skip
    """Draw samples in batches of `options.batch`, on the device of `inputs`, with the weights of a step.

    `owner`: the run, or the export's name, whose weights they are; `folder`: below it are its `samples`; `view`: rows
    to complete, or to take conditions from. The network is opened last. Raises UserError.
    """
    num = num_samples(options.num, request, sampler, options.noise)
    conditions = sample_conditions(sampler, num, view, inputs, request)
    facts: dict[str, Any] = {}
    if view is not None and conditions.rows is not None:
        fields = experiment.batch_fields()
        chosen = num_selected_rows(sampler, view, fields)
        requested = options.num or (DEFAULT_NUM_SAMPLES if chosen is None else conditions.num)
        if conditions.num < requested:
            warn(f"--num {requested}: {view.origin} has {conditions.num} rows to complete; all of them are drawn.")
        elif chosen is not None and conditions.num < chosen:
            completed = f"{conditions.num} of {chosen:,} rows to complete in {view.origin}"
            warn(f"--num {options.num}: {completed}; leave --num out for all.")
        if note := sampler.note(conditions.rows):
            warn(f"{note}.")
        divided = {field.name: view.columns[field.name] for field in fields if view.columns[field.name].divisors}
        facts["divisors"] = {
            name: dict(zip(each.names or map(str, range(len(each.divisors))), each.divisors, strict=True))
            for name, each in divided.items()
        }
    network = open_network()
    device = next(network.parameters()).device
    seed = experiment.seed if options.seed is None else options.seed
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    given = (conditions.tensors, conditions.num, generator, options.batch, options.trajectory, options.noise)
    try:
        drawn = draw_reported(progress, sampler, network, *given)
    except ValueError as error:
        if options.noise is None:
            raise
        raise UserError(str(error)) from error
    name = folder_name(step, experiment.to_dict()["sampling"], options.data, request, seed, options.noise)
    name += "" if options.ema is None else f"-ema{options.ema}".replace("=", "")
    origin = {"run": owner, "step": str(step)} | ({} if options.start is None else {"start": options.start.name})
    return SampleSet(drawn, sampler, step, origin, folder / "samples" / name, conditions.rows, facts)


def chosen_rows(saved: SavedRun, fields: Sequence[BatchField], choice: str | None) -> View:
    """The rows of `--data` (a store, `train`; default: `held_out`). Raises UserError for none, or for other fields."""
    data = saved.data()
    if choice is None:
        if not len(data.held_out):
            saved.warn(f"{data.note or 'nothing is held out'} Training rows are completed instead.")
        return rows_for_samples(data)
    if choice == "train":
        return data.train
    if choice == "held_out":
        if not len(data.held_out):
            raise UserError("--data held_out: this run holds nothing out; use --data train, or name a store's folder.")
        return data.held_out
    store = open_named_store("--data", choice, saved.home)
    view = View(store, hold_out_blocks(store, 0.0)[0], f"--data {choice}")  # all rows, without a list of them
    check_fields(view, fields)
    for field in fields:
        names, expected = view.columns[field.name].names, data.train.columns[field.name].names
        if expected and names != expected:
            pairs = enumerate(zip_longest(names, expected), start=1)
            entry, (name, own) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
            raise UserError(
                f"{view.origin} has {name} as entry {entry} of {field.name}, and the run's own data {own} "
                f"({data.train.origin}); import it with the same features in the same order."
            )
    return view


@dataclass(frozen=True)
class ExportedModel:
    """A network ready to use, from a folder that `ditlab export` wrote."""

    folder: Path
    spec: Experiment
    """The experiment that trained the network."""
    network: nn.Module
    """The network with the exported weights, in evaluation mode."""
    step: int
    """Optimiser step of the weights."""

    @property
    def text(self) -> TextCodec | None:
        """The codec of the export's tokeniser; None for a model of other data than text."""
        file = self.folder / TOKENIZER_NAME
        return text_codec(open_tokenizer(file)) if file.exists() else None

    @cached_property
    def sampler(self) -> Sampler:
        """The family's sampler (`denoisers.contract.Sampler`) under the spec's sampling settings."""
        return self._sampler(self.spec)

    def sample(self, num: int | None = None, **keywords: Unpack[SampleKeywords]) -> SampleSet:
        """Draw `num` samples from noise (default: 64, or 4 of each prompt).

        Raises UserError for options that do not fit, and for a model that completes rows of data or takes conditions
        from them where no prompts are given: an export has no data.
        """
        options = SampleOptions.of(num, keywords)
        changed = assign(self.spec.to_dict(), options.changes(), class_for)
        spec = build_experiment(changed, str(self.folder / "spec.yaml"))
        sampler = self._sampler(spec)
        request = sample_request(options, sampler)
        if sampler.takes_rows == "completed" or (sampler.takes_rows == "conditions" and not request.prompts):
            remedy = "use the run" if sampler.takes_rows == "completed" else "give prompts, or use the run"
            raise UserError(f"{self.folder}: this model samples from rows of data, and an export has none; {remedy}.")
        inputs = ModelInputs.from_experiment(spec, (), next(self.network.parameters()).device)
        return draw_set(
            options, spec, sampler, request, inputs, lambda: self.network, self.step, self.spec.name, self.folder
        )

    def _sampler(self, spec: Experiment) -> Sampler:
        with building():
            return spec.family.build_sampler(spec.sampling, spec.model, spec.objective, self.text)


def open_export(folder: Path, device: torch.device, warn: Callable[[str], None]) -> ExportedModel:
    """Load an export onto `device`; `warn` gets files that were changed. Raises UserError for damage, or no export."""
    for name in (SPEC_NAME, WEIGHTS_NAME):
        if not (folder / name).exists():
            raise UserError(f"{folder} holds no {name}, so it is no export; write one with `ditlab export`.")
    facts = check_export(folder, warn)
    return ExportedModel(folder, *load_checked(folder, device), facts.step)
