"""Drawing samples from a run's weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from denoisers.contract import Samples
from ditlab.analysis.averaging.requested import with_average
from ditlab.analysis.sampling.labels import with_class_number
from ditlab.analysis.sampling.options import SampleOptions
from ditlab.analysis.sampling.overrides import sampling_changes
from ditlab.analysis.sampling.request import folder_name, num_samples, sample_request
from ditlab.analysis.sampling.rows import remarks, rows_for, scales
from ditlab.analysis.sampling.sample_set import SampleSet
from ditlab.analysis.saved_run import SavedRun, default_device
from ditlab.errors import UserError
from ditlab.inputs.conditions import SampleConditions, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.evaluator import draw_reported
from ditlab.spec.reading.overrides import Assignment


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
