"""Held-out figures on fixed times and noise, and sample grids."""

from typing import Any

import torch
from torch import nn

from denoisers.figures import Figure
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.conditions import sample_conditions, rows_for_samples
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed, fixed_noise
from ditlab.spec.experiment import Experiment


def held_out_metrics(
    network: nn.Module,
    objective: Any,
    view: View,
    inputs: ModelInputs,
    batch_size: int,
    limit: int,
    rank: Rank,
    channel: ControlChannel,
) -> dict[str, float]:
    """The objective's metrics by name, over the first `limit` held-out samples.

    Times and noise of a sample are the same at every call, in every experiment and whatever the batches, so numbers of
    two runs can be compared.
    Workers take batches in turn, equally many each (ZeRO-3 gathers parameters on all at once).
    """
    pieces = list(view.pieces(batch_size, limit))
    if not pieces:
        return {}
    sums: dict[str, float] = {}
    count = 0.0
    for turn in range(0, len(pieces), rank.world_size):
        counts = turn + rank.rank < len(pieces)
        piece = pieces[turn + rank.rank if counts else 0]
        raw = {field.name: view.gather(field.name, piece.indices) for field in inputs.fields}
        batch = inputs.prepare_batch(raw, view.columns)
        size = len(piece.indices)
        noise = fixed_noise(piece.first, rank.device, piece.bucket)
        values = objective.metrics(network, batch, noise)
        if counts:
            count += size
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + size * float(value)
    names = sorted({name for group in channel.gather(list(sums)) for name in group})  # type: ignore[attr-defined]
    totals = channel.sum([count, *(sums.get(name, 0.0) for name in names)])
    means = {name: total / totals[0] for name, total in zip(names, totals[1:], strict=True)}
    found: dict[str, float] = objective.summary(means)
    return found


def sample_grid(network: nn.Module, experiment: Experiment, data: DataSplits, num: int, inputs: ModelInputs) -> Figure:
    """`num` samples from the same noise at every call, as shown to people; of held-out rows where rows are completed.

    Raises UserError where none can be drawn under the experiment's sampling settings.
    """
    sampler: Any = experiment.family.build_sampler(experiment.sampling, experiment.model, experiment.objective, data.text)
    generator = torch.Generator(inputs.device).manual_seed(derived_seed(experiment.seed, "samples"))
    conditions = sample_conditions(sampler, num, rows_for_samples(data), inputs)
    tensors = {name: value.to(inputs.device) for name, value in conditions.tensors.items()}
    return sampler.show(sampler.sample(network, tensors, conditions.num, generator))
