"""Drawing samples from a run's weights, with the real rows that they complete or take their conditions from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from denoisers.contract import BatchField, SampleRequest, Samples
from ditlab.analysis.averages import with_average
from ditlab.analysis.sample_options import SampleOptions, sampling_changes
from ditlab.analysis.sample_request import folder_name, num_samples, sample_request, with_class_number
from ditlab.analysis.sample_set import SampleSet
from ditlab.analysis.saved_run import SavedRun, default_device
from ditlab.data.loading.batches import check_fields
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.named_stores import open_named_store
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.inputs.conditions import (
    DEFAULT_NUM_SAMPLES,
    SampleConditions,
    num_selected_rows,
    rows_for_samples,
    sample_conditions,
)
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.evaluator import draw_reported
from ditlab.spec.overrides import Assignment


def draw(saved: SavedRun, options: SampleOptions) -> SampleSet:
    """Draw samples from a run's averaged weights, or from its weights where it has no average.

    Raises UserError for options that do not fit the run.
    """
    options = with_class_number(options, saved)
    experiment = saved.experiment(changes_of(options))
    device = default_device()
    sampler = saved.sampler(experiment)
    request = sample_request(options, sampler)
    fields = experiment.batch_fields()
    view = rows_for(saved, fields, options.data, sampler, request)
    inputs = ModelInputs.from_experiment(experiment, view.columns if view else (), device, saved.warn, saved.home)
    num = num_samples(options.num, request, sampler, options.noise)
    conditions = sample_conditions(sampler, num, view, inputs, request)
    facts: dict[str, Any] = {}
    if view is not None and conditions.rows is not None:
        for remark in remarks(sampler, options.num, conditions, view, fields):
            saved.warn(remark)
        facts = scales(view, fields)
    seed = experiment.seed if options.seed is None else options.seed
    with with_average(saved, options.ema) as averaged:
        network = averaged.network(device)
    drawn = draw_all(sampler, network, conditions, seed, options, saved.progress)
    name = folder_name(saved.step, experiment.to_dict()["sampling"], options.data, request, seed, options.noise)
    name += "" if options.ema is None else f"-ema{options.ema}".replace("=", "")
    folder = saved.folder.path / "samples" / name
    origin = origin_of(saved.folder.run_id, saved.step, options.start)
    return SampleSet(drawn, sampler, saved.step, origin, folder, conditions.rows, facts)


def draw_all(
    sampler: Any,
    network: nn.Module,
    conditions: SampleConditions,
    seed: int,
    options: SampleOptions,
    progress: Progress = ignore_progress,
) -> Samples:
    """Draw all samples in batches of `options.batch`, on the network's device.

    Raises UserError for noise that does not fit them.
    """
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "samples"))
    given = (conditions.tensors, conditions.num, generator, options.batch, options.trajectory, options.noise)
    try:
        return draw_reported(progress, sampler, network, *given)
    except ValueError as error:
        if options.noise is None:
            raise
        raise UserError(str(error)) from error


def changes_of(options: SampleOptions) -> Sequence[Assignment]:
    """Changes of the experiment that the options ask for."""
    given = {"solver": options.solver, "steps": options.steps, "guidance": options.guidance}
    return sampling_changes(given, options.overrides)


def origin_of(run_id: str, step: int, start: Path | None) -> dict[str, str]:
    """Texts of image files that say where their weights come from."""
    return {"run": run_id, "step": str(step)} | ({} if start is None else {"start": start.name})


def rows_for(
    saved: SavedRun, fields: Sequence[BatchField], choice: str | None, sampler: Any, request: SampleRequest
) -> View | None:
    """The rows to complete (`chosen_rows`), or to take conditions from where the request has none; None: neither.

    Raises UserError for `--data` where no rows are completed.
    """
    if sampler.takes_rows == "completed":
        return chosen_rows(saved, fields, choice)
    if choice is not None:
        raise UserError(
            f"--data {choice}: this run's family draws from noise alone and completes no rows; leave it out."
        )
    return rows_for_samples(saved.data()) if sampler.takes_rows == "conditions" and not request.prompts else None


def chosen_rows(saved: SavedRun, fields: Sequence[BatchField], choice: str | None) -> View:
    """The rows that `--data` names: `held_out`, `train` or a store; without it, the run's held-out rows.

    Raises UserError where nothing is held out, and for a store whose fields differ from those of the run's data.
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
            raise UserError("--data held_out: this run holds nothing out; use --data train, or name a store's folder.")
        return data.held_out
    store = open_named_store("--data", choice, saved.home)
    view = View(store, hold_out_blocks(store, 0.0)[0], f"--data {choice}")  # all rows, without a list of them
    check_fields(view, fields)
    _check_names(view, data.train, fields)
    return view


def remarks(
    sampler: Any, num: int | None, conditions: SampleConditions, view: View, fields: Sequence[BatchField]
) -> Iterator[str]:
    """Remarks on the rows that are completed: fewer than requested, not all, or a note of the sampler."""
    assert conditions.rows is not None
    chosen = num_selected_rows(sampler, view, fields)
    requested = num or (DEFAULT_NUM_SAMPLES if chosen is None else conditions.num)
    if conditions.num < requested:
        yield f"--num {requested}: {view.origin} has {conditions.num} rows to complete; all of them are drawn."
    elif chosen is not None and conditions.num < chosen:
        yield f"--num {num}: {conditions.num} of {chosen:,} rows to complete in {view.origin}; leave --num out for all."
    if note := sampler.note(conditions.rows):
        yield f"{note}."


def scales(view: View, fields: Sequence[BatchField]) -> dict[str, Any]:
    """Metadata of a table of completed rows: the divisors of each field's entries, by field and name."""
    found = {}
    for field in fields:
        column = view.columns[field.name]
        names = column.names or tuple(map(str, range(len(column.divisors))))
        if column.divisors:
            found[field.name] = dict(zip(names, column.divisors, strict=True))
    return {"divisors": found}


def _check_names(view: View, trained: View, fields: Sequence[BatchField]) -> None:
    """Raise UserError where an entry of a field has another name than in the data that the run was trained on."""
    for field in fields:
        names, expected = view.columns[field.name].names, trained.columns[field.name].names
        if not expected or names == expected:
            continue
        if not names:
            problem = f"has no names for the entries of {field.name}, such as '{expected[0]}'"
        else:
            first = next(i for i, pair in enumerate(zip(names, expected, strict=True)) if pair[0] != pair[1])
            problem = f"has '{names[first]}' as entry {first + 1} of {field.name}, not '{expected[first]}'"
        raise UserError(
            f"{view.origin} {problem}, as the run's own data has it ({trained.origin}); import it with the same "
            "features in the same order."
        )
